"""An answer fits the question's form before it is taken."""

import pytest

from durable import InvalidValue, interrupt, runs, schemas, workflow
from durable.models import Interrupt
from tests.scenario import begin, go, output

pytestmark = pytest.mark.usefixtures("alone")

AMOUNT = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "minimum": 1}},
    "required": ["amount"],
}


@workflow(version="1")
def schemas_ask(order):
    return interrupt("How much?", schema=AMOUNT)


def test_an_answer_of_another_form_is_refused_with_its_path_and_the_question_stays_open():
    run = begin(schemas_ask)
    question = Interrupt.objects.get(run=run)
    with pytest.raises(InvalidValue, match=r"answer\.amount"):
        runs.answer(question.id, {"amount": "much"}, actor="user:alice")
    runs.answer(question.id, {"amount": 3}, actor="user:alice")
    assert output(go(run)) == {"amount": 3}


def test_what_is_no_schema_is_refused_where_the_question_is_asked():
    with pytest.raises(InvalidValue, match="no JSON Schema"):
        schemas.check({"type": "number or so"})
