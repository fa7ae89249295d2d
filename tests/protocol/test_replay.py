"""A body is entered again and again; what it did before is remembered, not repeated."""

import pytest

from durable import interrupt, now, random, run_info, runs, task, uuid, workflow
from durable.models import Checkpoint
from tests.crashes import crash
from tests.scenario import (
    answer,
    begin,
    events,
    go,
    output,
    payloads,
    start,
    take_over,
    types,
    wake,
)
from tests.shop import Declined, pay, service, ship

pytestmark = pytest.mark.usefixtures("checked")

DONE: list[str] = []


@task()
def note(text):
    DONE.append(text)
    return (text, len(DONE))


@pytest.fixture(autouse=True)
def nothing_done(checked):
    DONE.clear()


def test_an_effect_before_a_question_is_not_repeated_when_a_person_answers():
    """E01."""

    @workflow(version="1")
    def pays_then_asks(order):
        paid = pay(order, "10")
        confirmed = interrupt("Did the receipt arrive?")
        return [paid["id"], confirmed]

    run = begin(pays_then_asks, "A-1")
    assert run.status == "waiting"
    before = payloads(run, "external.completed")[0]["result"]["id"]
    answer(run, True)
    assert output(go(run)) == [before, True]
    assert service.calls == ["A-1:pay"]


def test_each_of_two_questions_is_asked_once_and_the_first_answer_is_kept():
    """E01."""

    @workflow(version="1")
    def asks_twice(order):
        first = interrupt("Colour?")
        pay(order, "10")
        return [first, interrupt("Size?")]

    run = begin(asks_twice, "A-1")
    answer(run, "blue")
    run = go(run)
    assert run.status == "waiting"
    answer(run, "large")
    assert output(go(run)) == ["blue", "large"]
    assert [asked["question"] for asked in payloads(run, "interrupt.waiting")] == [
        "Colour?",
        "Size?",
    ]
    assert service.calls == ["A-1:pay"]


@pytest.mark.parametrize(
    "value", [False, 0, "", [], {}, None, {"0123456789abcdef0123456789abcdef": 1}, {"1": "x"}]
)
def test_an_answer_that_looks_empty_reaches_the_body_as_it_was_sent(value):
    """S12."""

    @workflow(version="1")
    def asks(order):
        return {"said": interrupt("What?")}

    run = begin(asks)
    answer(run, value)
    assert output(go(run)) == {"said": value}


def test_a_body_that_branches_on_a_declined_payment_takes_the_same_branch_after_a_crash():
    """P13."""
    seen = []

    @workflow(version="1")
    def offers_less(order):
        try:
            pay(order, "100")
        except Declined as error:
            seen.append((type(error), str(error), error.decline_code, error.limit))
            note("declined")
            return note(f"offer {error.limit}")[0]

    service.then(Declined("limit", 0.1))
    run = start(offers_less, "A-1")
    with crash(at="declined", when="after", nth=2):
        go(run)
    assert output(take_over(run)) == "offer 0.1"
    assert seen == [(Declined, "declined: limit", "limit", 0.1)] * 2
    assert service.calls == ["A-1:pay"]


def test_time_chance_and_identity_are_what_the_first_execution_saw():
    seen = []

    @workflow(version="1")
    def draws(order):
        seen.append([now().isoformat(), random(), str(uuid()), run_info().execution_date])
        interrupt("Go on?")
        return len(seen)

    run = begin(draws)
    answer(run, True)
    assert output(go(run)) == 2
    assert seen[0] == seen[1]


def test_a_body_sees_what_was_stored_and_not_what_a_task_returned():
    """Invariant 12: a tuple is a list from the first moment on."""
    seen = []

    @workflow(version="1")
    def looks(order):
        seen.append(note("a"))
        interrupt("Go on?")

    run = begin(looks)
    answer(run, True)
    go(run)
    assert seen == [["a", 1], ["a", 1]]


# The code has changed --------------------------------------------------------------------------


def deploy(body):
    """Replace the code of version 1 under its live runs."""
    return workflow(name="redeployed", version="1")(body)


def waits_in_the_middle(order):
    note("first")
    interrupt("Go on?")
    return pay(order, "10")


def renamed(order):
    ship(order)
    interrupt("Go on?")
    return pay(order, "10")


def with_another_input(order):
    note("changed")
    interrupt("Go on?")
    return pay(order, "10")


def with_a_call_less(order):
    interrupt("Go on?")
    return pay(order, "10")


def that_forgets_everything(order):
    return "done"


def that_asks_something_else(order):
    note("first")
    interrupt("Stop?")
    return pay(order, "10")


@pytest.mark.parametrize(
    "changed",
    [
        renamed,
        with_another_input,
        with_a_call_less,
        that_forgets_everything,
        that_asks_something_else,
    ],
)
def test_code_that_no_longer_matches_its_log_blocks_before_any_effect(changed):
    """E08."""
    run = begin(deploy(waits_in_the_middle), "A-1")
    deploy(changed)
    answer(run, True)
    run = go(run)
    assert (run.status, run.code, run.requires_operator) == ("blocked", "NONDETERMINISM", True)
    assert service.calls == []
    written = types(run)
    go(run)
    assert types(run) == written  # once


def test_a_block_names_what_was_expected_and_what_was_found():
    """E08."""
    run = begin(deploy(waits_in_the_middle), "A-1")
    deploy(renamed)
    run = wake(run)
    assert "'ship'" in run.reason
    assert "'note'" in run.reason


def test_a_repaired_deploy_goes_on_with_the_answer_that_was_given():
    """E08."""
    run = begin(deploy(waits_in_the_middle), "A-1")
    deploy(renamed)
    answer(run, True)
    assert go(run).status == "blocked"
    deploy(waits_in_the_middle)
    runs.resume(run.id, actor="user:oscar", reason="put the old code back")
    assert output(go(run))["id"] == "r1"
    assert DONE == ["first"]
    assert types(run).count("interrupt.waiting") == 1


def test_a_change_that_records_nothing_goes_on():
    """E08."""
    lines = []

    def with_a_log_line(order):
        lines.append("entering")
        return waits_in_the_middle(order)

    run = begin(deploy(waits_in_the_middle), "A-1")
    deploy(with_a_log_line)
    answer(run, True)
    assert output(go(run))["id"] == "r1"
    assert lines == ["entering"]


def test_checkpoints_of_a_blocked_run_are_as_they_were():
    """E08."""
    run = begin(deploy(waits_in_the_middle), "A-1")
    before = list(Checkpoint.objects.filter(run_id=run.id).values())
    deploy(renamed)
    assert wake(run).status == "blocked"
    assert list(Checkpoint.objects.filter(run_id=run.id).values()) == before
    assert before
    assert events(run, "run.blocked")
