"""The rules against everything anybody might send."""

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from approvals import errors, rules
from approvals.models import Approval
from approvals.statuses import ApprovalStatus

NOW = timezone.now()
ANYTHING = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()) | st.binary()


@given(ANYTHING.filter(lambda value: value not in ("approve", "reject")))
def test_nothing_but_the_two_words_is_a_choice(value):
    """A05."""
    assert isinstance(rules.choice(value), errors.InvalidChoice)


def test_the_two_words_are_choices():
    assert rules.choice("approve") is None
    assert rules.choice("reject") is None


@given(ANYTHING)
def test_a_reason_that_passes_can_be_stored(value):
    if rules.reason(value, choice="reject") is None:
        assert value.strip()
        assert "\x00" not in value
        assert len(value.encode()) <= 4 * rules.LONGEST_REASON


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("pending", None),
        ("expired", errors.TooLate),
        ("void", errors.Withdrawn),
        ("superseded", errors.ChangedMeanwhile),
        ("approved", errors.Unreadable),  # decided, yet no decision was found
        ("rejected", errors.Unreadable),
        ("Approved", errors.Unreadable),
    ],
)
def test_only_what_is_pending_can_be_decided(status, error):
    found = rules.open_at(Approval(status=status, decide_by=NOW + timedelta(seconds=1)), NOW)
    assert found is None if error is None else isinstance(found, error)


def test_every_status_is_judged_at_its_last_moment():
    for status in ApprovalStatus:
        assert rules.open_at(Approval(status=status, decide_by=NOW), NOW) is not None
