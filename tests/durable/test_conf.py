"""The engine's settings, read when they are asked for."""

from datetime import timedelta

from durable import conf


def test_without_settings_the_documented_defaults_hold(settings):
    settings.DURABLE = {}
    assert conf.lease_ttl() == timedelta(seconds=15)
    assert (conf.lease_margin(), conf.sweep_interval()) == (3.0, 5.0)
    assert (conf.max_attempts(), conf.reconcile_attempts()) == (5, 5)
    assert conf.prepared_statements()
    assert conf.relaxed_commits()


def test_a_changed_setting_is_seen_at_once(settings):
    settings.DURABLE = {"LEASE_TTL": 60, "RELAXED_COMMITS": False}
    assert conf.lease_ttl() == timedelta(minutes=1)
    assert not conf.relaxed_commits()


def test_the_tenant_is_the_sites_own(settings):
    settings.TENANT = "acme"
    assert conf.tenant() == "acme"
