"""`manage.py check` says when the engine's promises would not hold."""

import pytest

from durable import checks


def ids(found):
    return [message.id for message in found]


def test_a_sound_configuration_has_nothing_to_say():
    assert checks.postgresql_only() == []
    assert checks.acknowledged_late() == []
    assert checks.margin_below_ttl() == []


def test_another_database_is_refused(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    assert ids(checks.postgresql_only()) == ["durable.E001"]


def test_early_acknowledgement_is_refused(settings):
    settings.CELERY_TASK_ACKS_LATE = False
    assert ids(checks.acknowledged_late()) == ["durable.E002"]


@pytest.mark.parametrize(
    ("ttl", "margin"), [(15.0, 0), (15.0, -1), (15.0, 7.5), (2.0, 3.0), (0.0, 0.0)]
)
def test_a_margin_that_is_none_or_eats_the_lease_is_refused(settings, ttl, margin):
    settings.DURABLE = {"LEASE_TTL": ttl, "LEASE_MARGIN": margin}
    assert ids(checks.margin_below_ttl()) == ["durable.E003"]


def test_the_defaults_of_an_empty_setting_are_sound(settings):
    settings.DURABLE = {}
    assert checks.margin_below_ttl() == []
