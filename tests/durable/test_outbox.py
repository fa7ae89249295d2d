"""Messages to the outside: none lost, none stuck, and a repeated one is harmless (L10)."""

from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from durable import outbox, signals
from durable.errors import InvalidValue
from durable.models import ConsumedMessage, OutboxMessage
from tests.crashes import Crash
from tests.scenario import at_once, execute

pytestmark = pytest.mark.usefixtures("checked")


class Mailbox:
    """A consumer that may be told to fail, to die, or to be slow."""

    def __init__(self):
        self.got: list[str] = []
        self.fails: set[str] = set()
        self.dies_after: str | None = None
        self.then = None

    def __call__(self, message):
        if message.event_id in self.fails:
            raise ConnectionError("refused \x00")
        self.got.append(message.event_id)
        if message.event_id == self.dies_after:
            self.dies_after = None
            raise Crash
        if self.then:
            self.then(message)


@pytest.fixture
def mailbox(monkeypatch):
    box = Mailbox()
    monkeypatch.setitem(outbox._consumers, "mail", [box])
    return box


def put(*ids):
    for id_ in ids:
        outbox.put("mail", aggregate_id="A-1", payload={"n": 1}, event_id=id_)


def forget_claims():
    """A minute later: what a dead relay had claimed is free again."""
    execute("UPDATE durable_outboxmessage SET next_at = clock_timestamp()")


def status(id_):
    return OutboxMessage.objects.get(event_id=id_).status


def test_a_message_is_sent_once_and_in_order(mailbox):
    put("a", "b", "c")
    assert outbox.relay() == 3
    assert outbox.relay() == 0
    assert mailbox.got == ["a", "b", "c"]
    assert set(OutboxMessage.objects.values_list("status", flat=True)) == {"sent"}


def test_a_message_of_a_rolled_back_change_does_not_exist(mailbox):
    with transaction.atomic():
        put("a")
        transaction.set_rollback(True)
    assert (outbox.relay(), mailbox.got) == (0, [])


def test_a_stored_message_is_told_after_its_commit_and_not_after_a_rollback():
    """B08: and whoever cannot pass it on does not fail the caller."""
    told: list[str] = []

    def listen(sender, **kwargs):
        told.append("a message")
        raise ConnectionError("no broker")

    signals.message_stored.connect(listen, dispatch_uid="tests.outbox")
    try:
        with transaction.atomic():
            put("a")
            transaction.set_rollback(True)
        assert told == []
        with transaction.atomic():
            put("b")
            assert told == []
    finally:
        signals.message_stored.disconnect(dispatch_uid="tests.outbox")
    assert told == ["a message"]
    assert OutboxMessage.objects.get().event_id == "b"


def test_several_relays_share_five_hundred_messages_without_sending_one_twice(mailbox):
    """L10."""
    OutboxMessage.objects.bulk_create(
        OutboxMessage(event_id=f"m-{n}", aggregate_id="x", event_type="mail", payload="{}")
        for n in range(500)
    )
    for _ in range(3):
        at_once(*[outbox.relay] * 4)
    assert len(mailbox.got) == len(set(mailbox.got)) == 500
    assert not OutboxMessage.objects.exclude(status="sent").exists()


def test_a_relay_killed_between_sending_and_marking_repeats_only_what_was_in_flight(mailbox):
    """L10."""
    put("a", "b", "c")
    mailbox.dies_after = "b"
    with pytest.raises(Crash):
        outbox.relay()
    assert (status("a"), status("b"), status("c")) == ("sent", "sending", "sending")
    assert outbox.relay() == 0  # still claimed
    forget_claims()
    assert outbox.relay() == 2
    assert mailbox.got == ["a", "b", "c", "b"]


def test_a_message_that_always_fails_backs_off_and_blocks_no_other(mailbox):
    """L10."""
    put("bad", "good")
    mailbox.fails = {"bad"}
    assert outbox.relay() == 1
    bad = OutboxMessage.objects.get(event_id="bad")
    assert (bad.status, bad.attempts) == ("pending", 1)
    assert bad.last_error == "ConnectionError: refused \\u0000"
    assert outbox.relay() == 0
    assert bad.attempts == 1  # not tried again at once


def test_a_message_that_failed_its_last_time_is_dead_and_shown(mailbox):
    """L10."""
    put("bad")
    mailbox.fails = {"bad"}
    for _ in range(outbox.MAX_ATTEMPTS + 3):
        forget_claims()
        outbox.relay()
    bad = OutboxMessage.objects.get()
    assert (bad.status, bad.attempts, bad.sent_at) == ("dead", outbox.MAX_ATTEMPTS, None)


def test_a_message_that_kills_every_relay_blocks_no_other_and_is_given_up(mailbox):
    """L10."""
    put("poison", "b", "c")
    relays_that_died = 0
    for _ in range(outbox.MAX_ATTEMPTS + 3):
        mailbox.dies_after = "poison"
        forget_claims()
        try:
            outbox.relay()
        except Crash:
            relays_that_died += 1
    assert mailbox.got[:3] == ["poison", "b", "c"]
    poison = OutboxMessage.objects.get(event_id="poison")
    assert (poison.status, poison.attempts) == ("dead", outbox.MAX_ATTEMPTS)
    assert poison.last_error == "the sender died while sending it"
    assert relays_that_died == outbox.MAX_ATTEMPTS


def test_a_message_tried_before_takes_no_other_with_it(mailbox):
    """L10: those that failed once are behind it, and free for the next relay."""
    put("poison", "b", "c")
    mailbox.fails = {"poison", "b", "c"}
    outbox.relay()
    mailbox.fails = set()
    mailbox.dies_after = "poison"
    forget_claims()
    with pytest.raises(Crash):
        outbox.relay()
    assert (status("poison"), status("b"), status("c")) == ("sending", "pending", "pending")
    assert outbox.relay() == 2
    assert mailbox.got == ["poison", "b", "c"]


def test_waiting_behind_a_message_that_kills_the_relay_is_no_try(mailbox):
    """L10: a message is given up for its own failures only."""
    put("a", "b")
    mailbox.dies_after = "a"
    with pytest.raises(Crash):
        outbox.relay()
    attempts = dict(OutboxMessage.objects.values_list("event_id", "attempts"))
    assert attempts == {"a": 1, "b": 0}


def test_a_slow_relay_leaves_alone_what_another_took_meanwhile(mailbox):
    """L10: its claim is looked at before each message, not only when it marks it."""
    put("a", "b", "c")

    def too_slow(message):
        mailbox.then = None
        execute("UPDATE durable_outboxmessage SET next_at = clock_timestamp() WHERE event_id = 'b'")
        OutboxMessage.objects.filter(event_id="c").update(claim=uuid4())

    mailbox.then = too_slow
    assert outbox.relay() == 1
    assert mailbox.got == ["a"]
    assert outbox.relay() == 1
    assert (mailbox.got, status("c")) == (["a", "b"], "sending")


def test_a_relay_that_took_long_leaves_the_rest_to_the_next_one(mailbox, monkeypatch):
    """L10: one that hung and was interrupted does not hang again in the next message."""
    put("a", "b", "c")
    mailbox.fails = {"a", "b", "c"}
    outbox.relay()
    mailbox.fails = set()
    forget_claims()
    now = [0.0]
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def hangs(message):
        now[0] += 2 * outbox.CLAIM.total_seconds()

    mailbox.then = hangs
    assert outbox.relay() == 1
    assert (mailbox.got, status("b")) == (["a"], "pending")


def test_a_late_relay_cannot_overwrite_newer_bookkeeping(mailbox):
    """L10: it lost its claim while it was sending."""
    put("a")

    def another_takes_over(message):
        mailbox.then = None
        OutboxMessage.objects.filter(event_id="a").update(claim=uuid4())

    mailbox.then = another_takes_over
    assert outbox.relay() == 0
    assert status("a") == "sending"


def test_a_message_that_nobody_consumes_is_done():
    outbox.put("unheard-of", aggregate_id="A-1", payload=None)
    assert outbox.relay() == 1


def test_every_consumer_of_a_type_gets_it(monkeypatch):
    monkeypatch.setattr(outbox, "_consumers", {})
    got = []
    outbox.consumer("mail")(lambda message: got.append("first"))
    outbox.consumer("mail")(lambda message: got.append("second"))
    put("a")
    outbox.relay()
    assert got == ["first", "second"]


def test_one_event_id_is_one_message():
    put("a")
    with pytest.raises(IntegrityError), transaction.atomic():
        put("a")
    assert OutboxMessage.objects.count() == 1


@pytest.mark.parametrize(
    "wrong", [{"event_type": "a\x00"}, {"aggregate_id": "\ud800"}, {"payload": float("nan")}]
)
def test_what_cannot_be_stored_is_refused(wrong):
    """S01, S02."""
    given = {"event_type": "mail", "aggregate_id": "A-1", "payload": {}, **wrong}
    with pytest.raises(InvalidValue):
        outbox.put(given.pop("event_type"), **given)
    assert not OutboxMessage.objects.exists()


def test_a_consumer_handles_a_repeated_message_once():
    assert outbox.once("a", consumer="books")
    assert not outbox.once("a", consumer="books")
    assert outbox.once("a", consumer="stock")


def test_a_handling_that_is_rolled_back_is_done_again():
    with transaction.atomic():
        assert outbox.once("a", consumer="books")
        transaction.set_rollback(True)
    assert outbox.once("a", consumer="books")
    assert ConsumedMessage.objects.count() == 1


def test_of_two_handlers_at_once_one_handles():
    results = at_once(*[lambda: outbox.once("a", consumer="books")] * 6)
    assert sorted(results) == [False] * 5 + [True]
