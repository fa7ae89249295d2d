"""A wait or a lost lease leaves the body for good: no except, finally or thread goes on (P04)."""

import contextvars
import threading

import pytest
from django.db import transaction

from durable import (
    Failure,
    Misplaced,
    OutsideRun,
    claims,
    effect,
    engine,
    interrupt,
    runs,
    task,
    workflow,
)
from durable.errors import LeaseLost
from tests.scenario import (
    answer,
    at_once,
    begin,
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


@task()
def note(text):
    return text


# A wait ------------------------------------------------------------------------------------------


def and_catches_everything(order):
    try:
        interrupt("Go on?")
    except BaseException:
        ship(order)
        note("caught")
    finally:
        mail(order)


def and_catches_bare(order):
    try:
        interrupt("Go on?")
    except:  # noqa: E722
        ship(order)
    return "swallowed"


def and_ends_in_finally(order):
    try:
        interrupt("Go on?")
    finally:
        ship(order)


def and_returns_in_finally(order):
    try:
        interrupt("Go on?")
    finally:
        return "overridden"  # noqa: B012


def and_raises_instead(order):
    try:
        interrupt("Go on?")
    except BaseException:
        raise Failure("replaced") from None


@pytest.mark.parametrize(
    "body",
    [
        and_catches_everything,
        and_catches_bare,
        and_ends_in_finally,
        and_returns_in_finally,
        and_raises_instead,
    ],
)
def test_waiting_executes_nothing_after_it_and_is_not_swallowed(body):
    """P04."""
    run = begin(workflow(version="1")(body), "A-1")
    assert (run.status, run.waiting_for) == ("waiting", "answer")
    assert service.calls == []
    assert types(run)[-1] == "interrupt.waiting"


def test_an_approval_that_is_awaited_executes_no_handler(large_payments_ask):
    """P04: the refund of a charge that was never made is not made either."""

    @workflow(version="1")
    def refunds_in_panic(order):
        try:
            return pay(order, "6000")
        except BaseException:
            return ship(order)
        finally:
            mail(order)

    run = begin(refunds_in_panic, "A-1")
    assert (run.waiting_for, service.calls) == ("approval", [])


def test_an_unknown_outcome_is_not_an_error_that_a_body_can_catch():
    """P04, E03: `except Exception` around an effect does not see a timeout."""

    @workflow(version="1")
    def pays_again_on_error(order):
        try:
            return pay_blind(order)
        except Exception:
            return mail(order)

    service.then("silent")
    run = begin(pays_again_on_error, "A-1")
    assert (run.status, run.code) == ("blocked", "EFFECT_UNKNOWN")
    assert service.calls == ["A-1:blind"]
    assert record(run).status == "unknown"


def test_a_refusal_is_an_error_that_a_body_can_catch():
    @workflow(version="1")
    def mails_instead(order):
        try:
            return pay_blind(order)
        except Failure as error:
            return [str(error), mail(order)["id"]]

    service.then("refused")
    assert output(begin(mails_instead, "A-1")) == ["refused", "r1"]


# A lost lease ------------------------------------------------------------------------------------


def test_a_lost_lease_executes_no_handler():
    """P04: whoever lost the run undoes nothing, sends nothing, records nothing."""
    loser = threading.current_thread()

    @task()
    def loses(order):
        if threading.current_thread() is loser:
            at_once(lambda: take_over(run))
        return order

    @workflow(version="1")
    def panics(order):
        pay(order, "10")
        try:
            loses(order)
        except BaseException:
            ship(order)
        finally:
            if threading.current_thread() is loser:
                mail(order)
        interrupt("Go on?")

    run = start(panics, "A-1")
    run = go(run)
    assert (run.status, run.waiting_for) == ("waiting", "answer")
    assert service.calls == ["A-1:pay"]


def test_a_dead_executor_that_wakes_up_can_no_longer_send():
    """L01: its clock says that the lease is over, whatever the database would say."""

    @workflow(version="1")
    def pays(order):
        return pay(order, "10")

    run = start(pays, "A-1")
    claim = claims.claim(run.id)
    assert claim is not None
    claim.fence._confirmed -= claim.fence.ttl.total_seconds()  # it was stopped for a TTL
    with pytest.raises(LeaseLost):
        engine.Execution(claim).drive()
    assert service.calls == []
    assert output(take_over(run))["id"] == "r1"


# Calls from the wrong place ----------------------------------------------------------------------


def test_a_thread_that_the_user_started_has_no_run():
    """P04."""
    caught: list[BaseException] = []

    def in_the_background(order):
        try:
            pay(order, "10")
        except BaseException as error:
            caught.append(error)

    @workflow(version="1")
    def starts_a_thread(order):
        thread = threading.Thread(target=in_the_background, args=(order,))
        thread.start()
        thread.join()
        return "done"

    assert output(begin(starts_a_thread, "A-1")) == "done"
    assert [type(error) for error in caught] == [OutsideRun]
    assert service.calls == []


def test_a_thread_that_took_the_context_along_cannot_act_after_the_wait():
    """P04: a copied context is closed with its run."""
    caught: list[BaseException] = []
    go_ahead = threading.Event()

    def later(order):
        go_ahead.wait(10)
        try:
            pay(order, "10")
        except BaseException as error:
            caught.append(error)

    @workflow(version="1")
    def leaves_a_thread(order):
        if not threads:
            copied = contextvars.copy_context()
            threads.append(threading.Thread(target=copied.run, args=(later, order)))
            threads[0].start()
        interrupt("Go on?")

    threads: list[threading.Thread] = []
    run = begin(leaves_a_thread, "A-1")
    go_ahead.set()
    threads[0].join()
    assert len(caught) == 1
    assert (service.calls, fresh(run).status) == ([], "waiting")
    assert types(run)[-1] == "interrupt.waiting"


def test_an_effect_inside_a_task_is_refused():
    """P04."""

    @task()
    def smuggles(order):
        return pay(order, "10")

    @workflow(version="1")
    def with_a_smuggler(order):
        return smuggles(order)

    run = begin(with_a_smuggler, "A-1")
    assert (run.status, service.calls) == ("failed", [])
    assert payloads(run, "task.failed")[0]["error"]["kind"] == "durable.errors:Misplaced"


def test_an_effect_inside_an_effect_or_a_look_up_is_refused():
    """P04."""

    @effect(key="{order}:outer", name="control_flow_outer")
    def outer(call, order):
        try:
            pay(order, "10")
        except Misplaced as error:
            return str(error)

    @workflow(version="1")
    def nested(order):
        return outer(order)

    assert "inside the body of control_flow_outer" in output(begin(nested, "A-1"))
    assert service.calls == []


@pytest.mark.parametrize("call", [lambda: pay("A", "1"), lambda: note("x"), lambda: interrupt("?")])
def test_a_call_without_a_run_is_refused(call):
    """P04."""
    with pytest.raises(OutsideRun):
        call()
    assert service.calls == []


def test_a_call_inside_the_users_own_transaction_is_refused():
    """Design 6: its record would commit, or not, apart from that transaction."""

    @workflow(version="1")
    def in_a_transaction(order):
        with transaction.atomic():
            return pay(order, "10")

    run = begin(in_a_transaction, "A-1")
    assert (run.status, service.calls) == ("failed", [])
    assert "Misplaced" in payloads(run, "run.failed")[0]["error"]["kind"]


def test_what_a_body_did_before_a_cancel_is_undone_even_if_it_swallows_the_cancel():
    """P04, P07."""

    @workflow(version="1")
    def swallows(order):
        pay(order, "10")
        try:
            interrupt("Go on?")
        except BaseException:
            return "never mind"

    run = begin(swallows, "A-1")
    runs.cancel(run.id, actor="user:oscar", reason="changed my mind")
    run = go(run)
    assert run.status == "cancelled"
    assert service.calls == ["A-1:pay", "A-1:pay:undo"]


def test_a_call_after_an_answered_question_still_works():
    """The context is closed by a wait, not for ever: the next claim opens another."""

    @workflow(version="1")
    def goes_on(order):
        try:
            said = interrupt("Go on?")
        except BaseException:
            ship(order)
            raise
        return [said, pay(order, "10")["id"]]

    run = begin(goes_on, "A-1")
    answer(run, "yes")
    assert output(go(run)) == ["yes", "r1"]
    assert service.calls == ["A-1:pay"]
