"""The threads of a worker that sweep and relay: neither ends, and neither waits for the other."""

import threading
from asyncio import CancelledError

import pytest
from django.db import DatabaseError

from durable import conf, outbox, sweeper, workflow
from durable.models import OutboxMessage
from durable.sweeper_step import SweeperStep
from tests.scenario import execute, start

pytestmark = pytest.mark.usefixtures("alone")

PATIENCE = 10.0  # seconds
FATAL = [SystemExit, CancelledError, KeyboardInterrupt, DatabaseError, ValueError]


@workflow(version="1")
def step_pays(order):
    return order


@pytest.fixture
def release():
    """Set at the end: no thread of a test outlives it."""
    return threading.Event()


@pytest.fixture
def step(monkeypatch, release):
    monkeypatch.setattr(conf, "sweep_interval", lambda: 0.05)
    step = SweeperStep(None)
    yield step
    step.stop(None)
    release.set()
    for thread in (step._thread, step._relay_thread):
        assert thread is not None
        thread.join(PATIENCE)
        assert not thread.is_alive()


def put(*ids):
    for id_ in ids:
        outbox.put("mail", aggregate_id="A-1", payload={}, event_id=id_)


def test_a_consumer_that_hangs_delays_no_sweep(step, release, monkeypatch, hints):
    """E04, L10."""
    hangs = threading.Event()

    def consume(message):
        hangs.set()
        release.wait(60)

    monkeypatch.setattr(outbox, "_consumers", {"mail": [consume]})
    put("a")
    step.start(None)
    assert hangs.wait(PATIENCE)
    run = start(step_pays)
    execute("UPDATE durable_run SET wake_at = wake_at - interval '1 min'")
    hints.clear()
    for _ in range(int(PATIENCE / 0.05)):
        if run.id in hints:
            break
        step._stop.wait(0.05)
    assert run.id in hints


@pytest.mark.parametrize("error", FATAL)
def test_whatever_a_consumer_raises_the_next_message_is_sent_without_a_broker(
    step, monkeypatch, error
):
    """L10."""
    got = threading.Event()

    def consume(message):
        if message.event_id == "bad":
            put("good")
            raise error
        got.set()

    monkeypatch.setattr(outbox, "_consumers", {"mail": [consume]})
    put("bad")
    step.start(None)
    assert got.wait(PATIENCE)
    assert OutboxMessage.objects.get(event_id="bad").status in ("pending", "sending")


@pytest.mark.parametrize("error", FATAL)
def test_whatever_a_sweep_raises_there_is_a_next_one(step, monkeypatch, error):
    """E04."""
    looks = []
    again = threading.Event()

    def look(owner):
        looks.append(owner)
        if len(looks) == 1:
            raise error
        again.set()

    monkeypatch.setattr(sweeper, "sweep", look)
    step.start(None)
    assert again.wait(PATIENCE)
