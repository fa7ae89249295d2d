"""How the engine leaves a body: never by an error that the body could take for its own."""

import pytest

from durable.control import Abandon, Block, CancelNow, ControlFlow, Replay, Suspend, Wait
from durable.statuses import WaitingFor

ALL = [
    Abandon(),
    Block("CODE", "why"),
    CancelNow(),
    Replay(),
    Suspend(Wait(waiting_for=WaitingFor.TIMER)),
]


@pytest.mark.parametrize("control", ALL, ids=lambda control: type(control).__name__)
def test_no_except_exception_catches_it(control):
    """Invariant 13."""
    with pytest.raises(ControlFlow):
        try:
            raise control
        except Exception as error:
            raise AssertionError("caught") from error


def test_every_way_is_tried_above():
    assert {type(control) for control in ALL} == set(ControlFlow.__subclasses__())


def test_a_block_says_its_code_and_reason():
    block = Block("NONDETERMINISM", "the code has changed")
    assert (block.code, block.reason) == ("NONDETERMINISM", "the code has changed")
    assert str(block) == "NONDETERMINISM: the code has changed"
