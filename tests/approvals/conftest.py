"""People and one run that needs an approval.

Imports happen inside: this file is loaded before Django is set up.
"""

from datetime import timedelta

import pytest


@pytest.fixture
def alice(db):
    """An approver."""
    return _person("alice", "approver")


@pytest.fixture
def bob(db):
    """A second approver."""
    return _person("bob", "approver")


@pytest.fixture
def oscar(db):
    """An operator, who starts the runs."""
    return _person("oscar", "operator")


@pytest.fixture
def vera(db):
    """A viewer."""
    return _person("vera", "viewer")


def _person(name, role):
    from tests.approvals.miniature import make_person

    return make_person(name, role)


@pytest.fixture
def policy(monkeypatch):
    """The only policy in force: charges over 5,000 need one other person."""
    from approvals import policies

    monkeypatch.setattr(policies, "_policies", {})
    return policies.register(
        policies.Policy(
            name="large-charge",
            effect="charge",
            when=lambda parameters: float(parameters["amount"]) > 5000,
            decide_within=timedelta(hours=24),
            valid_for=timedelta(hours=1),
            sentence="Charges over 5,000 need one approver who did not request them",
        )
    )


@pytest.fixture
def engine(db, policy, oscar):
    """A run that oscar started, with a charge prepared."""
    from tests.approvals.miniature import make_engine

    return make_engine()


@pytest.fixture
def pending(engine):
    """A request that nobody has decided."""
    return engine.ask()
