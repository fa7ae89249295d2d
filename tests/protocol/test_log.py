"""A run's log: one order, one chain, nothing rewritten, and never more than what was committed."""

import json
from functools import partial
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction

from durable import claims, inbox, interrupt, journal, runs, sweeper, task, workflow
from durable.errors import LeaseLost
from durable.journal import Fact
from durable.leases import RENEW
from durable.models import Checkpoint, Event, Evidence, InboxItem, Run
from durable.statuses import EventType
from tests.after import frame_hash
from tests.crashes import crash
from tests.scenario import (
    Elsewhere,
    answer,
    at_once,
    begin,
    events,
    execute,
    fresh,
    go,
    lease,
    output,
    past_the_triggers,
    start,
    take_over,
    types,
    value_of,
)
from tests.shop import pay, service

ODD = {
    "big": 1e22,
    "small": 0.1,
    "tiny": 5e-324,
    "minus": -0.0,
    "text": "caf\u00e9 \U0001f600 \u2028 \u202e \x7f \\u0000 \" '",
    "\ufb33": "\u20ac",
    "\U0001f600": [True, None, -1],
}


@task()
def odd_task(value):
    return value


@workflow(version="1")
def log_odd(order):
    odd_task(ODD)
    return [interrupt("\u202eWhat? \U0001f600"), pay("caf\u00e9", "10")["id"]]


# The chain (P19) ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("checked")
def test_the_chain_of_odd_payloads_can_be_recomputed_elsewhere():
    """P19: 1e22, 0.1, unusual Unicode; an answer moved in between two steps."""
    run = begin(log_odd)
    answer(run, ODD, by="user:m\u00fcller \U0001f600")
    assert output(go(run))[0] == json.loads(json.dumps(ODD))
    previous = b""
    for event in events(run):
        previous = frame_hash(previous, event)
        assert bytes(event.hash) == previous, event.seq
    assert bytes(lease(run).head_hash) == previous


@pytest.mark.usefixtures("checked")
def test_sessions_in_several_time_zones_write_one_chain():
    """P19: microseconds since 1970 know no zone."""
    database = connection.settings_dict["NAME"]
    run = start(log_odd)
    try:
        for zone in ("Asia/Kathmandu", "America/St_Johns"):
            execute(f"ALTER DATABASE \"{database}\" SET timezone = '{zone}'")
            journal.journal().close()
            take_over(run)
            if fresh(run).waiting_for == "answer" and fresh(run).wake_at is None:
                answer(run, zone)
        assert output(go(run))[0] == "Asia/Kathmandu"
        with journal.journal().lock:
            shown = journal.journal().link().execute("SHOW timezone").fetchone()
        assert shown == ("America/St_Johns",)
    finally:
        execute(f'ALTER DATABASE "{database}" RESET timezone')
        journal.journal().close()


@pytest.mark.usefixtures("alone")
def test_a_changed_event_no_longer_fits_its_chain():
    run = begin(log_odd)
    past_the_triggers(
        "UPDATE durable_event SET payload = '{}' WHERE run_id = %s AND type = 'task.completed'",
        run.id,
    )
    previous, broken = b"", []
    for event in events(run):
        previous = frame_hash(previous, event)
        broken.append(bytes(event.hash) != previous)
    assert broken.index(True) + 1 == next(e.seq for e in events(run, "task.completed"))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("table", ["durable_event", "durable_checkpoint", "durable_evidence"])
@pytest.mark.parametrize(
    "sql", ["UPDATE {} SET epoch = 9", "DELETE FROM {}", "TRUNCATE {}", "TRUNCATE {} CASCADE"]
)
def test_history_is_never_updated_deleted_or_truncated(table, sql):
    """P19."""
    run = begin(log_odd)
    Evidence.objects.create(run_id=run.id, epoch=1, kind="result", payload="{}")
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        execute(sql.format(table))
    assert Event.objects.filter(run_id=run.id, epoch__lt=9).exists()
    assert Checkpoint.objects.filter(run_id=run.id).exists()


# A database that lost its tail (P01) -------------------------------------------------------------


def snapshot(run):
    """The lease as a crash of the database would bring it back."""
    return lease(run)


def lose_the_tail(run, before):
    """Take the events after `before` away again, as if their commits had never reached the disk."""
    past_the_triggers(
        "DELETE FROM durable_event WHERE run_id = %s AND seq > %s", run.id, before.last_seq
    )
    past_the_triggers(
        "UPDATE durable_lease SET last_seq = %s, head_hash = %s WHERE run_id = %s",
        before.last_seq,
        before.head_hash,
        run.id,
    )


COUNTED: list[str] = []


@task()
def log_count(name):
    COUNTED.append(name)
    return name


@pytest.mark.usefixtures("checked")
def test_an_executor_that_remembers_more_than_the_database_is_refused_and_replays():
    """P01: no effect rests on steps that were lost."""
    COUNTED.clear()
    lost: list[str] = []

    @workflow(version="1")
    def loses_its_tail(order):
        before = snapshot(run)
        log_count("one")
        log_count("two")
        if not lost:
            lose_the_tail(run, before)
            lost.append("tail")
        return [log_count("three"), pay(order, "10")["id"]]

    run = start(loses_its_tail, "A-1")
    go(run)
    run = take_over(run) if fresh(run).ended_at is None else fresh(run)
    assert output(run) == ["three", "r1"]
    assert COUNTED == ["one", "two", "three", "one", "two", "three"]
    assert service.calls == ["A-1:pay"]
    assert [event.epoch for event in events(run, "task.completed")] == [2, 2, 2]


@pytest.mark.usefixtures("checked")
def test_an_effect_is_not_started_on_top_of_a_lost_tail():
    """P01: the transaction that would start it checks last_seq, too."""
    COUNTED.clear()
    lost: list[str] = []

    @workflow(version="1")
    def pays_on_a_lost_tail(order):
        before = snapshot(run)
        counted = log_count("one")
        if not lost:
            lose_the_tail(run, before)
            lost.append("tail")
        return [counted, pay(order, "10")["id"]]

    run = start(pays_on_a_lost_tail, "A-1")
    go(run)
    run = take_over(run) if fresh(run).ended_at is None else fresh(run)
    assert output(run) == ["one", "r1"]
    assert COUNTED == ["one", "one"]
    assert service.calls == ["A-1:pay"]


@pytest.mark.usefixtures("alone")
def test_a_heartbeat_does_not_keep_an_executor_alive_that_remembers_more():
    """P01."""
    run = start(log_odd)
    claimed = claims.claim(run.id)
    assert claimed is not None
    fence = claimed.fence

    def renewed(last_seq):
        params = (fence.ttl, "", run.id, fence.owner, fence.epoch, last_seq)
        return value_of(RENEW, *params) is not None

    assert renewed(fence.last_seq)
    assert not renewed(fence.last_seq + 1)


# Who may write -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("checked")
def test_a_write_under_any_wrong_part_of_the_fence_stores_nothing():
    """Invariant 1: owner, epoch, last_seq and expiry, each on its own."""
    for wrong in ("owner", "epoch", "last_seq", "expired"):
        run = start(log_odd)
        claimed = claims.claim(run.id)
        assert claimed is not None
        fence = claimed.fence
        match wrong:
            case "owner":
                fence.owner = uuid4()
            case "epoch":
                fence.epoch += 1
            case "last_seq":
                fence.last_seq -= 1
            case "expired":
                execute("UPDATE durable_lease SET expires_at = clock_timestamp()")
        before = types(run)
        with pytest.raises(LeaseLost):
            journal.journal().append(fence, Fact(type=EventType.TIMER_FIRED), sync=True)
        assert types(run) == before, wrong
        assert fence.stolen


@pytest.mark.usefixtures("checked")
def test_two_executors_with_one_number_do_not_both_write_it():
    """L09: the loser gets a clear conflict."""
    run = start(log_odd)
    claimed = claims.claim(run.id)
    assert claimed is not None
    fence = claimed.fence
    sql = (
        "SELECT durable_append_v1(%s, %s, %s, %s, '10 s', true, 'timer.fired', '', '', '', '{}')"
        " IS NOT NULL"
    )
    once = partial(value_of, sql, run.id, fence.owner, fence.epoch, fence.last_seq)
    assert sorted(at_once(*[once] * 6)) == [False] * 5 + [True]
    assert types(run).count("timer.fired") == 1


# The caller's transaction (B08) ------------------------------------------------------------------


@pytest.mark.usefixtures("checked")
def test_a_start_that_is_rolled_back_leaves_nothing(hints):
    """B08: no run, no event, no wake-up."""
    with transaction.atomic():
        start(log_odd)
        transaction.set_rollback(True)
    assert (Run.objects.count(), Event.objects.count(), hints) == (0, 0, [])


@pytest.mark.usefixtures("checked")
def test_an_inner_rollback_leaves_no_run_while_the_outer_one_commits(hints):
    """B08."""
    with transaction.atomic():
        kept = start(log_odd)
        with transaction.atomic():
            start(log_odd)
            transaction.set_rollback(True)
    assert [run.id for run in Run.objects.all()] == [kept.id]
    assert hints == [kept.id]
    assert set(Event.objects.values_list("run_id", flat=True)) == {kept.id}


@pytest.mark.usefixtures("checked")
def test_an_earlier_hook_that_raises_does_not_cost_the_wake_up(hints):
    """B08."""

    def raises():
        raise RuntimeError("somebody else's hook")

    with transaction.atomic():
        transaction.on_commit(raises, robust=True)
        run = start(log_odd)
    assert hints == [run.id]


@pytest.mark.usefixtures("checked")
def test_a_hook_that_raises_and_stops_all_later_ones_costs_one_sweep_only(hints):
    """B08: the row is due, and the sweep looks for rows."""

    def raises():
        raise RuntimeError("somebody else's hook")

    with pytest.raises(RuntimeError), transaction.atomic():
        transaction.on_commit(raises)
        run = start(log_odd)
    execute("UPDATE durable_run SET wake_at = wake_at - interval '1 min'")
    assert hints == []
    assert sweeper.sweep(uuid4())
    assert hints == [run.id]


@pytest.mark.usefixtures("checked")
def test_an_answer_that_is_rolled_back_leaves_the_question_open():
    """B08."""
    run = begin(log_odd)
    with transaction.atomic():
        answer(run, "yes")
        transaction.set_rollback(True)
    assert go(run).waiting_for == "answer"
    assert not InboxItem.objects.exists()
    answer(run, "no")
    assert output(go(run))[0] == "no"


@pytest.mark.usefixtures("checked")
def test_nobody_sees_a_run_before_its_starter_commits():
    """B08: the worker that was told too early finds nothing to do, and no error."""
    with Elsewhere() as elsewhere:
        with transaction.atomic():
            run = start(log_odd)
            assert at_once(partial(claims.claim, run.id)) == [None]
            elsewhere.execute("SELECT 1")
        assert go(run).status == "waiting"


@pytest.mark.usefixtures("checked")
def test_what_was_received_is_moved_in_the_order_it_was_left():
    run = begin(log_odd)
    for reason in ("one", "two", "three"):
        runs.cancel(run.id, actor="user:oscar", reason=reason)
    go(run)
    told = [json.loads(event.payload)["reason"] for event in events(run, "cancel.requested")]
    assert told == ["one", "two", "three"]
    moved = InboxItem.objects.filter(run_id=run.id).order_by("id")
    assert [item.moved_seq for item in moved] == [e.seq for e in events(run, "cancel.requested")]


@pytest.mark.usefixtures("checked")
def test_what_comes_after_the_end_is_marked_as_too_late_and_never_part_of_the_log():
    run = begin(log_odd)
    runs.cancel(run.id, actor="user:oscar", reason="first")
    go(run)
    before = types(run)
    inbox.put(run.id, "resume.requested", actor="user:oscar", payload={"reason": "late"})
    assert InboxItem.objects.order_by("id").last().moved_seq == 0  # type: ignore[union-attr]
    assert types(run) == before


@pytest.mark.usefixtures("checked")
def test_a_crash_while_facts_are_moved_moves_them_once():
    run = begin(log_odd)
    answer(run, "yes")
    with crash(at="durable_effect_begin", when="before"):
        go(run)
    assert output(take_over(run)) == ["yes", "r1"]
    assert types(fresh(run)).count("interrupt.answered") == 1
