"""Messages to the outside, stored in the same transaction as the change that caused them.

At least once: a relay that dies between sending and marking sends again, so consumers use `once`.
"""

from __future__ import annotations

import logging
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
# How long one relay may take over its batch before another may take it over.
CLAIM = timedelta(seconds=60)
BATCH = 50
_backoff = Retry(attempts=MAX_ATTEMPTS, initial=1.0, cap=600.0, jitter=0.0)
_consumers: dict[str, list[Consumer]] = {}

TAKE = """
UPDATE durable_outboxmessage SET status = 'sending', claim = %s, attempts = attempts + 1,
    next_at = clock_timestamp() + %s
WHERE id IN (
    SELECT id FROM durable_outboxmessage
    WHERE status IN ('pending', 'sending') AND next_at <= clock_timestamp()
    ORDER BY next_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
RETURNING id
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
    transaction.on_commit(_announce, robust=True)
    return OutboxMessage.objects.create(
        event_id=event_id or f"evt_{uuid7()}",
        aggregate_id=aggregate_id,
        event_type=event_type,
        payload=canonical.dumps(payload, path="payload"),
    )


def _announce() -> None:
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
    """Send what is due, once through; returns how many were sent. Safe to run anywhere, twice."""
    claim = uuid4()
    taken = [row[0] for row in sql.rows(TAKE, claim, CLAIM, BATCH)]
    messages = OutboxMessage.objects.filter(id__in=taken, claim=claim).order_by("id")
    return sum(_send(message, claim) for message in messages)


def _send(message: OutboxMessage, claim: UUID) -> bool:
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
