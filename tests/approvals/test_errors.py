"""Errors speak to people and carry stable codes."""

import pytest

from approvals import errors

ERRORS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.ApprovalError)
]


def test_every_error_has_a_code_of_its_own():
    assert len({error.code for error in ERRORS}) == len(ERRORS)


@pytest.mark.parametrize("error", [e for e in ERRORS if e is not errors.AlreadyDecided])
def test_an_errors_docstring_is_its_message(error):
    assert str(error()) == " ".join(str(error.__doc__).split())
    assert str(error("Otherwise.")) == "Otherwise."
