"""The form that a question's answer must have: JSON Schema, draft 2020-12."""

from __future__ import annotations

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match

from durable.canonical import JSON
from durable.errors import InvalidValue


def check(schema: JSON) -> None:
    """Raise InvalidValue when this is no JSON Schema."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidValue(f"is no JSON Schema: {error.message}", path="schema") from error


def validate(value: JSON, schema: JSON) -> None:
    """Raise InvalidValue, with the path of what does not fit, when `value` is of another form."""
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is not None:
        raise InvalidValue(error.message, path=f"answer{error.json_path.removeprefix('$')}")
