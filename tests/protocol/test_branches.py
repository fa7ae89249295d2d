"""Branches side by side: whatever finishes first, each call finds its own record again (P08)."""

import itertools
import threading

import pytest

from approvals.models import Approval
from durable import ApprovalRejected, Failure, gather, interrupt, journal, runs, task, workflow
from durable.models import Interrupt
from tests.approvals.miniature import say
from tests.crashes import Crash
from tests.scenario import (
    answer,
    begin,
    events,
    fresh,
    go,
    output,
    payloads,
    record,
    start,
    take_over,
    types,
)
from tests.shop import mail, pay, pay_blind, service, ship

pytestmark = pytest.mark.usefixtures("checked")


PATHS = {"1.1": "a1", "1.2": "a2", "2.1": "b1", "2.2": "b2"}


class Order:
    """Lets the results of the branches be written in one chosen order, and in no other."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.deaths_in = 0
        self.turn = threading.Condition()

    def choose(self, *names: str, then_die_after: int = 0) -> None:
        self.places = list(names)
        self.deaths_in = then_die_after or -1

    def append(self, write):
        def append(journal, fence, fact, *, sync):
            if fact.task_key not in PATHS or not self.places:
                return write(journal, fence, fact, sync=sync)
            with self.turn:
                assert self.turn.wait_for(lambda: self._comes(fact.task_key), 10), fact.task_key
                if self.deaths_in == 0:
                    raise Crash
                write(journal, fence, fact, sync=sync)
                self.places.pop(0)
                self.deaths_in -= 1
                self.turn.notify_all()

        return append

    def _comes(self, path: str) -> bool:
        return self.deaths_in == 0 or self.places[0] == PATHS[path]


ORDER = Order()
RAN: list[str] = []

# Two branches of two calls each: a1 before a2, b1 before b2.
INTERLEAVINGS = [
    order
    for order in itertools.permutations(["a1", "a2", "b1", "b2"])
    if order.index("a1") < order.index("a2") and order.index("b1") < order.index("b2")
]


@pytest.fixture(autouse=True)
def nothing_ran(checked, monkeypatch):
    RAN.clear()
    ORDER.choose()
    monkeypatch.setattr(journal.Journal, "append", ORDER.append(journal.Journal.append))


@task()
def step(name):
    RAN.append(name)
    return f"result of {name}"


@workflow(version="1")
def two_branches(order):
    results = gather(
        lambda: [step("a1"), step("a2")],
        lambda: [step("b1"), step("b2")],
    )
    interrupt("Go on?")
    return results


RESULTS = [["result of a1", "result of a2"], ["result of b1", "result of b2"]]


def test_there_are_six_interleavings():
    assert len(INTERLEAVINGS) == 6


@pytest.mark.parametrize("first", INTERLEAVINGS, ids="-".join)
def test_calls_that_finish_in_any_order_are_found_again_by_their_paths(first):
    """P08: recorded in one order, replayed in whatever order the threads take then."""
    ORDER.choose(*first)
    run = begin(two_branches)
    assert [PATHS[event.task_key] for event in events(run, "task.completed")] == list(first)
    answer(run, True)
    assert output(go(run)) == RESULTS
    assert len(RAN) == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in itertools.permutations(INTERLEAVINGS, 2) if pair[0] < pair[1]],
)
def test_what_is_left_after_a_crash_may_finish_in_any_other_order(first, second):
    """P08: the crash comes after two of the four results."""
    ORDER.choose(*first, then_die_after=2)
    run = start(two_branches)
    with pytest.raises(Crash):
        go(run)
    done = [PATHS[event.task_key] for event in events(run, "task.completed")]
    assert done == list(first[:2])
    ORDER.choose(*[name for name in second if name not in done])
    run = take_over(run)
    answer(run, True)
    assert output(go(run)) == RESULTS


def test_effects_of_two_branches_are_each_done_once_and_answered_to_the_right_caller():
    @workflow(version="1")
    def effects_in_branches(order):
        return gather(
            lambda: [pay(order + "-1", "10")["what"], ship(order + "-1")["what"]],
            lambda: [pay(order + "-2", "20")["what"], ship(order + "-2")["what"]],
        )

    run = begin(effects_in_branches, "A")
    assert output(run) == [["10", "parcel"], ["20", "parcel"]]
    assert sorted(service.keys()) == ["A-1:pay", "A-1:ship", "A-2:pay", "A-2:ship"]


def test_submitted_calls_are_numbered_where_they_were_submitted():
    @workflow(version="1")
    def submits(order):
        first, second = step.submit("x"), step.submit("y")
        between = step("z")
        return [second.result(), first.result(), between]

    run = begin(submits)
    assert output(run) == ["result of y", "result of x", "result of z"]
    named = {event.task_key: event.payload for event in events(run, "task.completed")}
    assert set(named) == {"1.1", "2.1", "3"}
    assert '"x"' not in named["2.1"]
    assert "result of x" in named["1.1"]


def test_a_branch_that_waits_does_not_stop_its_sibling():
    @workflow(version="1")
    def one_waits(order):
        return gather(
            lambda: interrupt("Go on?"),
            lambda: [pay(order, "10")["id"], ship(order)["id"]],
        )

    run = begin(one_waits, "A-1")
    assert (run.status, run.waiting_for) == ("waiting", "answer")
    assert service.calls == ["A-1:pay", "A-1:ship"]
    answer(run, "yes")
    assert output(go(run)) == ["yes", ["r1", "r2"]]
    assert len(service.calls) == 2


def test_two_branches_that_wait_are_both_kept_and_answered_in_any_order():
    """A03: while one question is open, the other answer is kept."""

    @workflow(version="1")
    def two_wait(order):
        return gather(lambda: interrupt("One?"), lambda: interrupt("Two?"))

    run = begin(two_wait)
    two = Interrupt.objects.get(run=run, question="Two?")
    runs.answer(two.id, 2, actor="user:alice")
    assert go(run).status == "waiting"
    answer(run, 1)
    assert output(go(run)) == [1, 2]
    assert types(fresh(run)).count("interrupt.waiting") == 2


def test_of_a_mixed_batch_the_rejected_one_is_never_done_and_the_others_once(large_payments_ask):
    """A03."""

    def or_refused(order, amount):
        try:
            return pay(order, amount)["what"]
        except ApprovalRejected as error:
            return error.reason

    @workflow(version="1")
    def mixed_batch(order):
        return gather(
            lambda: or_refused("A", "10"),
            lambda: or_refused("B", "6000"),
            lambda: or_refused("C", "7000"),
        )

    run = begin(mixed_batch)
    b, c = (Approval.objects.get(run=run, key=f"{name}:pay") for name in "BC")
    say(c, "reject", reason="too much")
    assert go(run).status == "waiting"
    say(b, "approve")
    assert output(go(run)) == ["10", "6000", "too much"]
    assert service.keys() == ["A:pay", "B:pay"]


def test_an_error_in_one_branch_is_raised_after_the_others_came_to_rest():
    @workflow(version="1")
    def one_fails(order):
        try:
            return gather(lambda: _fail(), lambda: step("b1"))
        except Failure as error:
            return [str(error), step("after")]

    run = begin(one_fails)
    assert output(run) == ["no", "result of after"]
    assert sorted(RAN) == ["after", "b1"]


def _fail():
    raise Failure("no")


def test_of_two_unknown_branches_neither_is_repeated():
    @workflow(version="1")
    def both_unknown(order):
        return gather(lambda: pay_blind(order), lambda: mail(order))

    service.then("silent", "silent")
    run = begin(both_unknown, "A-1")
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    statuses = set(run.records.values_list("status", flat=True))
    assert statuses == {"unknown"}
    go(run)
    assert sorted(service.calls) == ["A-1:blind", "A-1:mail"]


def test_two_branches_with_one_key_do_it_once_and_both_get_the_answer():
    @workflow(version="1")
    def same_key(order):
        return gather(lambda: pay(order, "10")["id"], lambda: pay(order, "10")["id"])

    run = begin(same_key, "A-1")
    for _ in range(3):
        run = take_over(run) if run.ended_at is None else run
    assert output(run) == ["r1", "r1"]
    assert service.calls == ["A-1:pay"]
    assert record(run).attempt == 1
    assert len(payloads(run, "external.completed")) == 2


def test_branches_within_branches_have_paths_of_their_own():
    @workflow(version="1")
    def nested(order):
        return gather(
            lambda: gather(lambda: step("p"), lambda: step("q")),
            lambda: step("r"),
        )

    run = begin(nested)
    assert output(run) == [["result of p", "result of q"], "result of r"]
    assert {event.task_key for event in events(run, "task.completed")} == {"1.1.1", "1.2.1", "2.1"}
