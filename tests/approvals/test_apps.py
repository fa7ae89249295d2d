"""What the app joins to the engine when Django starts."""

import uuid
from datetime import timedelta

import pytest

from approvals import policies
from approvals.gate import ApprovalGate
from approvals.models import Approval
from durable import gate, sweeper
from tests.approvals.miniature import make_engine, passed, set_clocks


def test_the_policies_of_installed_apps_are_in_force():
    by_name = {policy.name: policy for policy in policies.registered()}
    assert by_name["large-charge"].effect == "charge"
    assert by_name["large-charge"].decide_within == timedelta(hours=24)


def test_effects_are_guarded():
    assert isinstance(gate.current(), ApprovalGate)


@pytest.mark.django_db(transaction=True)
def test_the_engines_sweep_ends_what_nobody_decided(policy, oscar):
    """A07."""
    approval = set_clocks(make_engine().ask(), decide_by=passed())
    found = sweeper.sweep(uuid.uuid4())
    assert found is not None
    assert found["approvals.expired"] == 1
    assert Approval.objects.get(id=approval.id).status == "expired"
