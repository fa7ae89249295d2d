"""When to try again: arithmetic that never overflows and wishes that are never trusted."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable.errors import Retryable
from durable.retry import MAX_RETRY_AFTER, Retry, decide, retry_after_seconds

BASE = Retry(attempts=10**9, initial=1, cap=300, jitter=0.1)


def decision(retry, *, attempt=1, elapsed=0.0, wish=None, random=0.0, error=None):
    error = error or Retryable(retry_after=wish)
    return decide(retry, error, attempt=attempt, elapsed=elapsed, random=lambda: random)


@pytest.mark.parametrize(("attempt", "delay"), [(2, 1), (3, 2), (4, 4), (10, 256), (11, 300)])
def test_delays_double_up_to_the_cap(attempt, delay):
    assert BASE.delay_before(attempt, random=lambda: 0.0) == delay


@pytest.mark.parametrize("attempt", [1, 40, 1_100, 100_000, 10**9])
def test_the_growing_delay_never_overflows(attempt):
    """E20."""
    assert 0 <= BASE.delay_before(attempt, random=lambda: 1.0) <= 330


@given(st.integers(-5, 10**12), st.floats(0, 1), st.floats(1, 1e6), st.floats(0, 1e9))
def test_a_delay_is_never_negative_nor_above_cap_and_jitter(attempt, chance, factor, initial):
    """E20."""
    retry = Retry(initial=initial, factor=factor, cap=300, jitter=0.1)
    assert 0 <= retry.delay_before(attempt, random=lambda: chance) <= 300 * 1.1


@pytest.mark.parametrize("wish", ["nan", "-5", "1e400", "", "soon", None, True, float("inf"), -1])
def test_a_wish_that_makes_no_sense_is_ignored(wish):
    """E20."""
    assert retry_after_seconds(wish) is None
    assert decision(BASE, attempt=4, wish=wish).delay == 8


def test_a_date_in_the_past_is_ignored_and_one_ahead_is_obeyed():
    """E20."""
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    past, ahead = (format_datetime(now + timedelta(seconds=s), usegmt=True) for s in (-60, 90))
    assert retry_after_seconds(past, now=now) is None
    assert retry_after_seconds(ahead, now=now) == 90
    assert retry_after_seconds("Sun Nov 29 12:01:30 2026", now=now) == 90


def test_a_wish_longer_than_the_own_delay_is_obeyed():
    """E20."""
    assert decision(BASE, attempt=4, wish=43).delay == 43
    assert decision(BASE, attempt=4, wish="43").delay == 43
    assert decision(BASE, attempt=4, wish=2).delay == 8


def test_a_huge_wish_is_cut_to_a_day():
    """E20."""
    assert decision(BASE, wish=10_000_000).delay == MAX_RETRY_AFTER == 86400


def test_the_last_attempt_is_the_last():
    assert decision(Retry(attempts=3), attempt=2).attempt == 3
    assert decision(Retry(attempts=3), attempt=3) is None
    assert decision(Retry(attempts=1), attempt=1) is None


def test_only_the_listed_errors_are_tried_again():
    retry = Retry(on=(ConnectionError,))
    assert decision(retry, error=ConnectionResetError()) is not None
    assert decision(retry, error=ValueError()) is None


def test_no_try_begins_after_the_time_budget():
    retry = Retry(attempts=9, initial=4, budget=10, jitter=0)
    assert decision(retry, elapsed=6.0) is not None
    assert decision(retry, elapsed=6.1) is None
    assert decision(retry, elapsed=0.0, wish=11) is None


@pytest.mark.parametrize(
    "nonsense", [{"attempts": 0}, {"initial": -1}, {"cap": -1}, {"factor": 0.5}, {"jitter": -1}]
)
def test_nonsense_is_refused_where_it_is_declared(nonsense):
    with pytest.raises(ValueError, match="Retry"):
        Retry(**nonsense)
