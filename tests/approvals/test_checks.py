"""A policy that could never ask is found before anything runs."""

from dataclasses import replace

from approvals import policies
from approvals.checks import policies_guard_something


def test_a_policy_of_an_effect_that_does_not_exist_is_reported(policy):
    policies.register(replace(policy, name="misspelt", effect="chrage"))
    reported = [error for error in policies_guard_something() if "misspelt" in error.msg]
    assert [error.id for error in reported] == ["approvals.E001"]


def test_the_policies_of_the_installed_apps_guard_effects_that_exist():
    assert policies_guard_something() == []
