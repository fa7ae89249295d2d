"""Messages to the outside, stored in the same transaction as the change that caused them.

At least once: a relay that dies between sending and marking sends again, so consumers use `once`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

from django.db import transaction

from durable import canonical, sql
from durable.canonical import JSON
from durable.failures import clean
from durable.models import ConsumedMessage, OutboxMessage, uuid7
from durable.retry import Retry
from durable.signals import message_stored
from durable.statuses import MessageStatus

logger = logging.getLogger(__name__)

Consumer = Callable[[OutboxMessage], None]

MAX_ATTEMPTS = 12
# How long one relay may take to begin its batch, and then over each message, before another
# relay may take it over.
CLAIM = timedelta(seconds=60)
BATCH = 50
DIED = "the sender died while sending it"
_backoff = Retry(attempts=MAX_ATTEMPTS, initial=1.0, cap=600.0, jitter=0.0)
_consumers: dict[str, list[Consumer]] = {}

# ARRAY: evaluated once; a plain subquery could be repeated, and take more than LIMIT.
_TAKE = """
UPDATE durable_outboxmessage SET status = 'sending', claim = %s, next_at = clock_timestamp() + %s
WHERE id = ANY (ARRAY(
    SELECT id FROM durable_outboxmessage
    WHERE status IN ('pending', 'sending') AND next_at <= clock_timestamp() AND attempts {tried}
    ORDER BY next_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
"""
TAKE = _TAKE.format(tried="= 0")
TAKE_AGAIN = _TAKE.format(tried="> 0")
# Charged when its own sending begins: waiting behind another message is no try. A claim that is
# over belongs to whoever comes next.
BEGIN = """
UPDATE durable_outboxmessage SET attempts = attempts + 1, next_at = clock_timestamp() + %s
WHERE id = %s AND claim = %s AND next_at > clock_timestamp() RETURNING attempts
"""
# Only the relay that holds the claim may say what became of it.
MARK = """
UPDATE durable_outboxmessage SET status = %s, claim = NULL, last_error = %s,
    next_at = clock_timestamp() + %s,
    sent_at = CASE WHEN %s = 'sent' THEN clock_timestamp() END
WHERE id = %s AND claim = %s RETURNING id
"""


def put(
    event_type: str, *, aggregate_id: str, payload: JSON, event_id: str | None = None
) -> OutboxMessage:
    """Store a message in the caller's transaction; the relay sends it after the commit.

    A repeated `event_id` is refused by the database. Raises InvalidValue.
    """
    canonical.check_text(event_type, "event_type")
    canonical.check_text(aggregate_id, "aggregate_id")
    transaction.on_commit(announce, robust=True)
    return OutboxMessage.objects.create(
        event_id=event_id or f"evt_{uuid7()}",
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=canonical.dumps(payload, path="payload"),
    )


def announce() -> None:
    """Tell a relay that messages wait; whoever fails to pass it on does not fail the caller."""
    for _, error in message_stored.send_robust(sender=None):
        if isinstance(error, Exception):
            logger.warning("the relay was not told: %s", error)


def consumer(event_type: str) -> Callable[[Consumer], Consumer]:
    """Register a function that sends messages of this type; it raises when it could not."""

    def register(function: Consumer) -> Consumer:
        _consumers.setdefault(event_type, []).append(function)
        return function

    return register


def once(event_id: str, *, consumer: str) -> bool:
    """True the first time `consumer` sees this message; joins the caller's transaction.

    The mark commits with what the caller does, so a crash in between handles it again.
    """
    _, created = ConsumedMessage.objects.get_or_create(consumer=consumer, event_id=event_id)
    return created


def relay() -> int:
    """Send what is due, once through; returns how many were sent. Safe to run anywhere, twice.

    What was tried before comes last, and each alone: it may be what killed the relay before.
    Nothing is begun after `CLAIM`.
    """
    claim = uuid4()
    ends = time.monotonic() + CLAIM.total_seconds()
    sent = sum(_send(message, claim) for message in _take(TAKE, claim, BATCH))
    for _ in range(BATCH):
        again = _take(TAKE_AGAIN, claim, 1) if time.monotonic() < ends else []
        if not again:
            break
        sent += _send(again[0], claim)
    return sent


def _take(statement: str, claim: UUID, limit: int) -> list[OutboxMessage]:
    taken = [row[0] for row in sql.rows(statement, claim, CLAIM, limit)]
    return list(OutboxMessage.objects.filter(id__in=taken, claim=claim).order_by("id"))


def _send(message: OutboxMessage, claim: UUID) -> bool:
    if message.attempts >= MAX_ATTEMPTS:
        # Nobody was left to say so at its last try.
        logger.error("message %s is given up: its sender died", message.event_id)
        _mark(message, claim, MessageStatus.DEAD, DIED, timedelta(0))
        return False
    attempts = sql.value(BEGIN, CLAIM, message.id, claim)
    if attempts is None:
        return False  # another relay's by now
    message.attempts = attempts
    try:
        for send in _consumers.get(message.event_type, []):
            send(message)
    except Exception as error:
        logger.warning("message %s was not sent: %s", message.event_id, error)
        _put_back(message, claim, error)
        return False
    return _mark(message, claim, MessageStatus.SENT, "", timedelta(0))


def _put_back(message: OutboxMessage, claim: UUID, error: Exception) -> None:
    dead = message.attempts >= MAX_ATTEMPTS
    delay = _backoff.delay_before(message.attempts + 1, random=lambda: 0.0)
    _mark(
        message,
        claim,
        MessageStatus.DEAD if dead else MessageStatus.PENDING,
        clean(f"{type(error).__name__}: {error}"),
        timedelta(seconds=delay),
    )


def _mark(
    message: OutboxMessage, claim: UUID, status: MessageStatus, error: str, delay: timedelta
) -> bool:
    return bool(sql.rows(MARK, status.value, error, delay, status.value, message.id, claim))
