"""A cancel is a stored fact: only undoing starts after it (P07, A11, E12)."""

from functools import partial

import pytest

from approvals.errors import ApprovalError, Withdrawn
from approvals.models import Approval, Decision
from durable import (
    Failure,
    Retry,
    Retryable,
    effects,
    gather,
    inbox,
    interrupt,
    runs,
    sleep,
    task,
    workflow,
)
from durable.errors import InterruptClosed, InvalidValue, NotBlocked, RunEnded, RunNotFound
from durable.models import Interrupt, uuid7
from tests.approvals.miniature import say
from tests.crashes import crash
from tests.people import make_person
from tests.scenario import (
    answer,
    at_once,
    begin,
    can_no_longer_land,
    events,
    fresh,
    go,
    lease,
    payloads,
    record,
    start,
    take_over,
    types,
    wake,
)
from tests.shop import mail, pay, pay_blind, service, ship

pytestmark = pytest.mark.usefixtures("checked")


def cancel(run, reason="changed my mind"):
    runs.cancel(run.id, actor="user:oscar", reason=reason)


def undo_note(result, text):
    UNDONE.append((result, text))


UNDONE: list[tuple[str, str]] = []


@task(compensate=undo_note)
def cancel_note(text):
    return text.upper()


@pytest.fixture(autouse=True)
def nothing_undone(checked):
    UNDONE.clear()


@workflow(version="1")
def does_several_things(order):
    pay(order, "10")
    cancel_note("noted")
    ship(order)
    mail(order)
    interrupt("All well?")


# Undoing -----------------------------------------------------------------------------------------


def test_a_cancel_undoes_what_was_done_newest_first_although_the_flag_is_set():
    """P07."""
    run = begin(does_several_things, "A-1")
    cancel(run)
    run = go(run)
    assert run.status == "cancelled"
    assert service.keys(":undo") == ["A-1:ship:undo", "A-1:pay:undo"]
    assert UNDONE == [("NOTED", "noted")]
    told = payloads(run, "run.cancelled")[0]
    assert [undone["name"] for undone in told["undone"]] == ["ship", "cancel_note", "pay"]
    assert [(left["name"], left["why"]) for left in told["left"]] == [("mail", "manual")]


def test_one_undo_that_fails_for_good_is_left_for_a_person_and_stops_no_other():
    run = begin(does_several_things, "A-1")
    cancel(run)
    service.then("refused")
    run = go(run)
    assert run.status == "cancelled"
    assert service.keys(":undo") == ["A-1:pay:undo"]
    left = payloads(run, "run.cancelled")[0]["left"]
    assert [(item["name"], item["why"]) for item in left] == [
        ("mail", "manual"),
        ("ship", "refused"),
    ]
    assert record(run, operation="ship").status == "compensating"


def test_an_undo_that_may_be_tried_again_is(clock):
    run = begin(does_several_things, "A-1")
    cancel(run)
    service.then("busy")
    run = go(run)
    assert (run.status, run.waiting_for) == ("waiting", "retry")
    clock.forward(61)
    assert go(run).status == "cancelled"
    assert service.keys(":undo") == ["A-1:ship:undo", "A-1:pay:undo"]


def test_a_crash_around_any_write_of_the_undoing_undoes_everything_once():
    """P07: each write of a cancelled run, before and after its commit."""
    run = begin_and_cancel("untroubled")
    with crash(at="durable_finish") as death:
        go(run)
    for when in ("before", "after"):
        for nth in range(1, len(death.seen) + 1):
            run = begin_and_cancel(f"{when}-{nth}")
            with crash(when=when, nth=nth):
                go(run)
            for _ in range(5):
                run = take_over(run)
                if run.waiting_for == "reconcile":
                    _let_settle(run)
            assert run.status == "cancelled", (when, nth, types(run))
            assert service.keys(f"{when}-{nth}:") == [
                f"{when}-{nth}:pay",
                f"{when}-{nth}:ship",
                f"{when}-{nth}:ship:undo",
                f"{when}-{nth}:pay:undo",
            ]


@workflow(version="1")
def pays_and_ships_and_asks(order):
    pay(order, "10")
    ship(order)
    interrupt("All well?")


def begin_and_cancel(order):
    run = begin(pays_and_ships_and_asks, order)
    cancel(run)
    return run


def _let_settle(run):
    can_no_longer_land(run)
    unknown = record(run, status="unknown")
    effects.ask_outside(unknown.operation_id, actor="user:oscar")


def test_a_failed_run_undoes_the_same_way():
    @workflow(version="1")
    def fails_at_the_end(order):
        pay(order, "10")
        raise Failure("out of stock")

    run = begin(fails_at_the_end, "A-1")
    assert (run.status, run.code, run.reason) == ("failed", "FAILED", "out of stock")
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]
    assert payloads(run, "run.failed")[0]["error"]["message"] == "out of stock"


def test_what_was_charged_twice_by_two_runs_is_undone_only_by_its_own():
    first = begin(pays_and_ships_and_asks, "A-1")
    second = begin(pays_and_ships_and_asks, "A-2")
    cancel(first)
    go(first)
    assert service.keys("undo") == ["A-1:ship:undo", "A-1:pay:undo"]
    assert fresh(second).status == "waiting"


def test_several_branches_are_undone_too():
    @workflow(version="1")
    def in_branches(order):
        gather(lambda: pay(order, "10"), lambda: ship(order))
        interrupt("All well?")

    run = begin(in_branches, "A-1")
    cancel(run)
    assert go(run).status == "cancelled"
    assert sorted(service.keys("undo")) == ["A-1:pay:undo", "A-1:ship:undo"]


# When --------------------------------------------------------------------------------------------


def test_cancelling_twice_is_harmless_and_an_end_stays_an_end():
    run = begin(does_several_things, "A-1")
    cancel(run)
    cancel(run, "really")
    run = go(run)
    assert run.status == "cancelled"
    assert types(run).count("run.cancelled") == 1
    with pytest.raises(RunEnded):
        cancel(run)
    with pytest.raises(RunEnded):
        runs.resume(run.id, actor="user:oscar", reason="please")


def test_a_run_cancelled_before_it_began_does_nothing():
    run = start(does_several_things, "A-1")
    cancel(run)
    assert go(run).status == "cancelled"
    assert service.calls == []


def test_a_cancel_during_a_task_lets_no_effect_start_after_it():
    """Invariant 9: the transaction that would start the effect looks for it."""

    @task()
    def meanwhile(order):
        at_once(lambda: cancel(run))
        return order

    @workflow(version="1")
    def pays_after(order):
        meanwhile(order)
        return pay(order, "10")

    run = start(pays_after, "A-1")
    assert go(run).status == "cancelled"
    assert service.calls == []


def test_a_cancel_whose_nudge_was_lost_still_lets_no_effect_start(monkeypatch):
    """Invariant 9: received and not yet in the log is stored, too."""

    @task()
    def quietly(order):
        monkeypatch.setattr(inbox, "poke", lambda *args, **options: None)
        at_once(lambda: cancel(run))
        return order

    @workflow(version="1")
    def pays_after_quietly(order):
        quietly(order)
        return pay(order, "10")

    run = start(pays_after_quietly, "A-1")
    assert go(run).status == "cancelled"
    assert service.calls == []


def test_a_cancel_during_a_call_waits_for_its_answer_and_undoes_it():
    original = service.do

    def do(key, what):
        if key == "A-1:pay":
            at_once(lambda: cancel(run))
        return original(key, what)

    run = start(pays_and_ships_and_asks, "A-1")
    service.do = do  # type: ignore[method-assign]
    try:
        run = go(run)
    finally:
        del service.do
    assert run.status == "cancelled"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]


@task(retry=Retry(attempts=5, initial=10, jitter=0))
def cancel_flaky(order):
    service.calls.append("flaky")
    raise Retryable("away")


def test_a_cancel_during_a_back_off_ends_the_run_and_the_later_wake_up_does_nothing(clock):
    """E12."""

    @workflow(version="1")
    def backs_off(order):
        cancel_flaky(order)
        return pay(order, "10")

    run = begin(backs_off, "A-1")
    assert run.waiting_for == "retry"
    clock.forward(3)
    cancel(run)
    run = go(run)
    assert (run.status, run.wake_at) == ("cancelled", None)
    written = types(run)
    clock.forward(40)
    go(run)
    assert (types(fresh(run)), service.calls) == (written, ["flaky"])


def test_a_cancel_while_an_effect_backs_off_sends_nothing_more(clock):
    """E12."""
    service.then("busy")
    run = begin(pays_and_ships_and_asks, "A-1")
    cancel(run)
    assert go(run).status == "cancelled"
    clock.forward(600)
    go(run)
    assert service.calls == ["A-1:pay"]


def test_a_sleeping_run_can_be_cancelled():
    @workflow(version="1")
    def sleeps_long(order):
        sleep(3600)

    run = begin(sleeps_long)
    cancel(run)
    assert go(run).status == "cancelled"


def test_a_blocked_run_can_be_cancelled():
    @workflow(version="1")
    def cancel_blocked(order):
        cancel_note("a")
        interrupt("Go on?")

    run = begin(cancel_blocked)

    @workflow(name="cancel_blocked", version="1")
    def changed(order):
        cancel_note("b")

    assert wake(run).status == "blocked"
    cancel(run)
    assert go(run).status == "cancelled"
    assert UNDONE == [("A", "a")]


def test_a_question_of_a_cancelled_run_can_no_longer_be_answered():
    run = begin(does_several_things, "A-1")
    question = Interrupt.objects.get(run=run)
    cancel(run)
    go(run)
    with pytest.raises(InterruptClosed):
        runs.answer(question.id, True, actor="user:alice")
    question.refresh_from_db()
    assert question.status == "void"


def test_an_answer_that_comes_with_a_cancel_is_kept_and_the_cancel_wins():
    run = begin(does_several_things, "A-1")
    cancel(run)
    answer(run, True)
    run = go(run)
    assert run.status == "cancelled"
    assert {"interrupt.answered", "cancel.requested"} <= set(types(run))


def test_a_run_that_was_cancelled_while_it_ended_is_one_or_the_other():
    @workflow(version="1")
    def ends(order):
        at_once(lambda: cancel(run))
        return "done"

    run = start(ends)
    run = go(run)
    assert run.status == "cancelled"
    assert events(run, "run.cancelled")
    assert lease(run).owner is None


@pytest.mark.parametrize("reason", ["", "  ", "a\x00b", "x" * 2001, 5])
def test_a_cancel_without_a_usable_reason_changes_nothing(reason):
    """S01."""
    run = begin(does_several_things, "A-1")
    with pytest.raises(InvalidValue) as refused:
        cancel(run, reason)
    assert refused.value.path == "reason"
    assert fresh(run).wake_at is None


def test_a_run_that_does_not_exist_or_is_a_strangers_is_not_found():
    run = begin(does_several_things, "A-1")
    for stranger in ({"run_id": uuid7()}, {"run_id": run.id, "tenant": "elsewhere"}):
        for command in (runs.cancel, runs.resume, runs.give_up):
            with pytest.raises(RunNotFound):
                command(actor="user:oscar", reason="why not", **stranger)
    with pytest.raises(NotBlocked):
        runs.resume(run.id, actor="user:oscar", reason="why not")
    with pytest.raises(NotBlocked):
        runs.give_up(run.id, actor="user:oscar", reason="why not")


# Approvals of a run that ends --------------------------------------------------------------------


@workflow(version="1")
def two_large_payments(order):
    gather(lambda: pay(order + "-1", "6000"), lambda: pay(order + "-2", "7000"))


def test_a_cancel_withdraws_both_questions_in_neutral_words(large_payments_ask):
    """A11."""
    run = begin(two_large_payments, "A-1")
    approvals = list(Approval.objects.filter(run=run, status="pending"))
    assert len(approvals) == 2
    cancel(run)
    assert go(run).status == "cancelled"
    for approval in approvals:
        with pytest.raises(Withdrawn):
            say(approval, "approve")
        approval.refresh_from_db()
        assert approval.status == "void"
    assert (service.calls, Decision.objects.count()) == ([], 0)


def test_a_run_that_an_operator_ends_leaves_no_question_behind(large_payments_ask):
    """A11."""

    @workflow(version="1")
    def blocked_beside_a_question(order):
        gather(lambda: pay(order, "6000"), lambda: pay_blind(order))

    service.then("silent")
    run = begin(blocked_beside_a_question, "A-1")
    assert run.status == "blocked"
    approval = Approval.objects.get(run=run, status="pending")
    can_no_longer_land(run)
    runs.give_up(run.id, actor="user:oscar", reason="enough")
    assert go(run).status == "failed"
    approval.refresh_from_db()
    assert (approval.status, service.calls) == ("void", ["A-1:blind"])


def test_a_cancel_against_an_approval_leaves_a_consistent_pair_in_any_order(large_payments_ask):
    """A11: thirty races."""
    make_person("alice", "approver")

    @workflow(version="1")
    def one_large_payment(order):
        pay(order, "6000")
        interrupt("All well?")

    outcomes = set()
    for round in range(30):
        run = begin(one_large_payment, f"A-{round}")
        approval = Approval.objects.get(run=run)
        decided, _ = at_once(partial(say, approval, "approve"), partial(cancel, run))
        assert decided is None or isinstance(decided, Decision | ApprovalError), decided
        run = go(run)
        approval.refresh_from_db()
        assert run.status == "cancelled", (round, run.status)
        assert approval.status == "void"
        assert Decision.objects.filter(approval=approval).exists() == isinstance(decided, Decision)
        outcomes.add(type(decided).__name__)
    assert service.keys() == []
    assert outcomes


def test_an_approval_that_was_used_before_the_cancel_is_undone(large_payments_ask):
    """A11."""

    @workflow(version="1")
    def approved_and_asks(order):
        pay(order, "6000")
        interrupt("All well?")

    run = begin(approved_and_asks, "A-1")
    say(Approval.objects.get(run=run), "approve")
    go(run)
    cancel(run)
    assert go(run).status == "cancelled"
    assert service.keys() == ["A-1:pay", "A-1:pay:undo"]
    assert Approval.objects.get(run=run).status == "approved"
