"""How the API reads bodies: strict JSON, and no more of it than can be stored.

Apart from `requests`, because Django REST framework loads it before its own views exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import APIException
from rest_framework.parsers import BaseParser

from durable import canonical
from durable.canonical import JSON
from durable.errors import InvalidValue
from durable.faults import Fault, InvalidRequest

# A value of the largest size that is stored, whose characters are all written as escapes.
MAX_BODY_BYTES = 6 * canonical.MAX_BYTES + 16_384
# The body is an object around the value.
MAX_BODY_DEPTH = canonical.MAX_DEPTH + 1


class BodyTooLarge(APIException):
    """The body is larger than what is read."""

    status_code = 413
    default_code = "TOO_LARGE"
    default_detail = f"The body is larger than {MAX_BODY_BYTES} bytes."


class LengthRequired(APIException):
    """Without its length a body would count as empty."""

    status_code = 411
    default_code = "LENGTH_REQUIRED"
    default_detail = "Send the body with its Content-Length, not in chunks."


class StrictJSONParser(BaseParser):
    """I-JSON, and no more of it than can be stored."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> JSON:
        """Return the parsed body. Raises InvalidRequest, BodyTooLarge."""
        body: bytes = stream.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge
        try:
            return canonical.loads(body.decode(), path="body", max_depth=MAX_BODY_DEPTH)
        except UnicodeDecodeError as error:
            raise InvalidRequest([Fault("", "is not UTF-8")]) from error
        except InvalidValue as error:
            # A field is named as its sender knows it: "input.amount".
            path = error.path.removeprefix("body").removeprefix(".")
            raise InvalidRequest([Fault(path, error.reason)]) from error
