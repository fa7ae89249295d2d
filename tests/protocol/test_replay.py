"""A body is entered again and again; what it did before is remembered, not repeated."""

import pytest

from durable import interrupt, workflow
from tests.scenario import answer, begin, go, output
from tests.shop import pay, service

pytestmark = pytest.mark.usefixtures("alone")


def test_an_effect_before_a_question_is_not_repeated_when_a_person_answers():
    """E01."""

    @workflow(version="1")
    def pays_then_asks(order):
        paid = pay(order, "10")
        confirmed = interrupt("Did the receipt arrive?")
        return [paid["id"], confirmed, pay(order, "10")["id"]]

    run = begin(pays_then_asks, "A-1")
    assert run.status == "waiting"
    answer(run, True)
    assert output(go(run)) == ["r1", True, "r1"]
    assert service.calls == ["A-1:pay"]
