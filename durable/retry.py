"""When to try again: a pure rule that looks at an error and returns a decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER = 24 * 3600.0
"""Seconds. A server's wish for longer than a day is cut to a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and how fast to try again.

    attempts: tries in all, the first included.
    initial, cap: seconds before the second try, and the most between two tries.
    factor: growth per try. jitter: share of the delay added at random (0 to 1).
    budget: seconds from the first try after which no new try begins; None is no limit.
    """

    attempts: int = 3
    initial: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.1
    budget: float | None = None
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("Retry(attempts=...) must be at least 1")
        if min(self.initial, self.cap, self.jitter) < 0 or self.factor < 1:
            raise ValueError("Retry delays must not be negative and factor must be at least 1")

    def delay_before(self, attempt: int, *, random: Callable[[], float]) -> float:
        """Seconds to wait before try number `attempt` (2 is the first retry)."""
        try:
            delay = min(self.cap, self.initial * self.factor ** max(attempt - 2, 0))
        except OverflowError:  # 2.0 ** 100_000: the cap is reached long before
            delay = self.cap
        return delay + delay * self.jitter * random()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    attempt: int
    delay: float  # seconds


def retry_after_seconds(wish: float | str | None, *, now: datetime | None = None) -> float | None:
    """Read a Retry-After wish: seconds or an HTTP date. None when it is missing or nonsense."""
    if wish is None or isinstance(wish, bool):
        return None
    seconds = _as_seconds(wish, now or datetime.now(UTC))
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds, MAX_RETRY_AFTER)


def _as_seconds(wish: float | str, now: datetime) -> float | None:
    try:
        return float(wish)
    except (ValueError, OverflowError):
        pass
    try:
        date = parsedate_to_datetime(str(wish))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds()


def decide(
    retry: Retry,
    error: Exception,
    *,
    attempt: int,
    elapsed: float,
    random: Callable[[], float],
) -> RetryDecision | None:
    """What to do after try number `attempt` failed `elapsed` seconds after the first began.

    Returns None when the error is final.
    """
    if attempt >= retry.attempts or not isinstance(error, retry.on):
        return None
    delay = retry.delay_before(attempt + 1, random=random)
    wish = retry_after_seconds(getattr(error, "retry_after", None))
    if wish is not None:
        delay = max(delay, wish)
    if retry.budget is not None and elapsed + delay > retry.budget:
        return None
    return RetryDecision(attempt=attempt + 1, delay=delay)
