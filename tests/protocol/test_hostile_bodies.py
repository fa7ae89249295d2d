"""Bodies that swallow, leak, change and fork what they should not (invariants 5 and 13, P08)."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from django.db import DatabaseError

from durable import OutsideRun, context, effect, engine, gather, interrupt, sleep, task, workflow
from examples.models import Order, Product, Reservation
from tests.crashes import crash
from tests.scenario import (
    Elsewhere,
    answer,
    begin,
    execute,
    fresh,
    go,
    output,
    record,
    somebody_waits_for_a_lock,
    start,
    take_over,
    types,
)
from tests.shop import mail, pay, service, ship

pytestmark = pytest.mark.usefixtures("checked")

ENDS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError]


@task()
def hostile_step(name):
    return name


# Exits in the middle of a call -------------------------------------------------------------------


@effect(key="{order}:end", timeout=20, settle=20, reconcile=lambda call: service.find(call.key))
def hostile_end(call, order, end):
    """A charge that happens, in a process that is told to end before it can say so."""
    done = service.do(call.key, "charge")
    if end >= 0:
        raise ENDS[end]
    return done


@workflow(version="1")
def hostile_catches(end):
    try:
        return hostile_end("A-1", end)["id"]
    except BaseException:
        mail("A-1")  # "sorry, it did not work"


@workflow(version="1")
def hostile_forgets(end):
    hostile_end.submit("A-1", end)
    return "r1"


def go_on(run):
    """Advance the run; if that ends the worker, the next one takes it over."""
    try:
        return go(run)
    except (SystemExit, KeyboardInterrupt):
        assert (fresh(run).status, record(run).status) == ("running", "running")
        return take_over(run)


@pytest.mark.parametrize("end", range(len(ENDS)))
@pytest.mark.parametrize("flow", [hostile_catches, hostile_forgets], ids=["caught", "unread"])
def test_a_call_that_landed_before_an_exit_is_unknown_then_found_and_not_sent_again(flow, end):
    """Invariant 5: whether the body catches the exit or nobody reads the result of submit()."""
    run = go_on(start(flow, end))
    assert (output(run), record(run).status) == ("r1", "succeeded")
    assert "external.unknown" in types(run)
    assert service.calls == ["A-1:end"]


@pytest.mark.parametrize("end", ENDS)
def test_nothing_follows_an_exit_before_it_is_known_whether_the_call_arrived(end, clock):
    """Invariant 5: whoever catches the exit knows no more than anybody else."""
    service.then(end())
    run = go_on(start(hostile_catches, -1))
    assert (run.waiting_for, record(run).status) == ("reconcile", "unknown")
    assert service.calls == ["A-1:end"]
    clock.forward(60)
    assert (output(go(run)), service.keys()) == ("r1", ["A-1:end"])


def test_the_database_refuses_to_end_a_run_whose_call_is_still_running():
    """Invariant 5: whatever an executor believes."""
    run = start(hostile_catches, -1)
    with crash(at="durable_effect_begin"):
        go(run)
    with pytest.raises(DatabaseError, match="still running"):
        execute(engine.FINISH, run.id, "30 s", "succeeded", "{}", "null", None, "", "")
    assert take_over(run).waiting_for == "reconcile"


def test_a_group_around_a_wait_parks_the_run():
    """Invariant 13: as asyncio.TaskGroup wraps what its tasks raise."""

    @workflow(version="1")
    def hostile_groups(order):
        try:
            sleep(3600)
        except BaseException as waits:
            raise BaseExceptionGroup("unhandled errors in a TaskGroup", [waits]) from None

    run = begin(hostile_groups)
    assert (run.status, run.waiting_for) == ("waiting", "timer")


# Branches ----------------------------------------------------------------------------------------


def test_more_branches_than_threads_finish_although_each_has_branches_of_its_own():
    """P08: as many as run at once have begun before the first nested one does."""
    full, begun = threading.Event(), []

    def branch(n):
        begun.append(n)
        if len(begun) >= context.MAX_BRANCHES:
            full.set()
        assert full.wait(10)
        return gather(lambda: hostile_step(n), lambda: hostile_step(-n))

    @workflow(version="1")
    def hostile_nests(order):
        return gather(*[lambda n=n: branch(n) for n in range(20)])

    assert output(begin(hostile_nests)) == [[n, -n] for n in range(20)]


@pytest.fixture
def shelf():
    """One product and one order for it."""
    Product.objects.create(sku="bolt", on_hand=10)
    Order.objects.create(order_id="A-1", customer_id="acme", total=1, currency="USD", lines=[])


@task(atomic=True)
def hostile_reserves():
    """A child whose deferred foreign key is checked, and locks its parents, only at the end."""
    Reservation.objects.create(order_id="A-1", sku_id="bolt", quantity=1)


def test_branches_whose_transactions_need_each_others_rows_do_not_deadlock(shelf):
    """P08: one locks a row that the other's deferred constraint needs."""
    locked = threading.Event()

    @task(atomic=True)
    def hostile_locks():
        Product.objects.select_for_update().get(sku="bolt")
        locked.set()
        somebody_waits_for_a_lock()

    @workflow(version="1")
    def hostile_shares(order):
        gather(lambda: hostile_locks(), lambda: locked.wait(10) and hostile_reserves())

    assert begin(hostile_shares).status == "succeeded"
    assert Reservation.objects.count() == 1


def test_a_strangers_lock_on_a_row_stops_only_the_task_that_needs_it(shelf):
    """P08: the journal of the process goes on."""
    with Elsewhere() as stranger:

        def goes_on():
            somebody_waits_for_a_lock()
            written = [hostile_step(n) for n in range(5)]
            stranger.commit()
            return written

        @workflow(version="1")
        def hostile_meets_a_stranger(order):
            return gather(lambda: hostile_reserves(), goes_on)

        stranger.execute("SELECT 1 FROM examples_product WHERE sku = 'bolt' FOR UPDATE")
        assert output(begin(hostile_meets_a_stranger)) == [None, [0, 1, 2, 3, 4]]
    assert Reservation.objects.count() == 1


def test_a_run_row_held_longer_than_a_lease_may_wait_delays_the_run_and_does_not_block_it(settings):
    """P12: a stranger's SELECT FOR UPDATE is no fault of the workflow."""
    settings.DURABLE = {**settings.DURABLE, "LEASE_TTL": 0.9, "LEASE_MARGIN": 0.1}
    with Elsewhere() as stranger:
        release = threading.Timer(3, stranger.commit)

        @task()
        def hostile_is_held():
            if release.ident is None:
                stranger.execute("SELECT 1 FROM durable_run FOR NO KEY UPDATE")
                release.start()

        run = begin(workflow(version="1", name="hostile_held")(lambda order: hostile_is_held()))
        release.join()
    assert (run if run.status == "succeeded" else take_over(run)).status == "succeeded"


# Arguments and threads ---------------------------------------------------------------------------


def test_a_task_that_changes_its_argument_changes_nothing_of_the_bodys():
    """Invariant 12: or the body would see the change at first, and not on replay."""

    @task()
    def hostile_enriches(lines):
        lines.append("extra")

    @workflow(version="1")
    def hostile_looks_again(lines):
        hostile_enriches(lines)
        seen = hostile_step(lines)
        interrupt("Go on?")
        return [seen, lines]

    run = begin(hostile_looks_again, [])
    answer(run, True)
    assert output(go(run)) == [[], []]


@effect(key="{words}:says", timeout=20, settle=20)
def hostile_says(call, words):
    return service.do(call.key, words)


def test_arguments_changed_after_submit_are_sent_as_they_were():
    """Invariant 12: also when no thread was free to begin with them at once."""
    changed = threading.Event()

    @task()
    def hostile_keeps_busy():
        assert changed.wait(10)

    @workflow(version="1")
    def hostile_changes_its_mind(order):
        words = ["yes"]
        busy = [hostile_keeps_busy.submit() for _ in range(context.MAX_BRANCHES)]
        kept, said = hostile_step.submit(words), hostile_says.submit(words)
        words[0] = "no"
        changed.set()
        results = [kept.result(), said.result()["what"], *[each.result() for each in busy]]
        interrupt("Go on?")
        return results

    run = begin(hostile_changes_its_mind)
    answer(run, True)
    assert output(go(run))[:2] == [["yes"], ["yes"]]
    assert service.keys() == ["['yes']:says"]


def test_a_thread_of_the_bodys_own_cannot_make_recorded_calls():
    """Invariant 13: nobody knows where in the body its call would stand."""

    @workflow(version="1")
    def hostile_threads(order):
        # As asyncio.to_thread does it: another thread, with this one's context.
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(copy_context().run, ship, f"A-{n}") for n in range(4)]
        return [type(call.exception()).__name__ for call in calls]

    assert output(begin(hostile_threads)) == ["OutsideRun"] * 4
    assert service.calls == []


def test_a_thread_that_outlives_its_body_sends_nothing_while_the_run_is_undone():
    """Invariant 13: it carries the context of its branch along."""
    undoing, refused = threading.Event(), threading.Event()

    def undo(result):
        undoing.set()
        assert refused.wait(10)

    @task(compensate=undo)
    def hostile_is_undone():
        return 1

    def stray():
        assert undoing.wait(10)
        with pytest.raises(OutsideRun):
            pay("A-2", "10")
        refused.set()

    @workflow(version="1")
    def hostile_leaks(order):
        hostile_is_undone()
        gather(lambda: threading.Thread(target=copy_context().run, args=(stray,)).start())
        raise ValueError("out of stock")

    run = begin(hostile_leaks)
    assert (run.status, refused.is_set(), service.calls) == ("failed", True, [])
