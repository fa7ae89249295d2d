"""Who acts is always said."""

import pytest

from durable import InvalidValue, actors, runs
from tests.scenario import start

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("actor", ["", "  ", None, 7, "user:a\x00b", "user:" + "x" * 500])
def test_nobody_in_particular_may_not_act(actor):
    with pytest.raises(InvalidValue, match="actor"):
        actors.check(actor)


def test_a_command_without_an_actor_leaves_nothing_behind():
    run = start("fulfil", {"order_id": "A-1"})
    with pytest.raises(InvalidValue, match="actor"):
        runs.cancel(run.id, actor="", reason="why not")
    assert not run.is_final
