"""How the API reads what a client sent: strictly, naming the place of every fault.

Nothing is guessed, trimmed or converted: text is text, a number is a number, an unknown name is a
fault. What passes here can be stored as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

from django.http import QueryDict
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import MethodNotAllowed, UnsupportedMediaType
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from durable import journal
from durable.canonical import JSON
from durable.faults import MOST_FAULTS, Fault, InvalidRequest
from durable.parsers import LengthRequired

MAX_TEXT = 500


# The body ------------------------------------------------------------------------------------


class Fields(serializers.Serializer[Any]):
    """The fields that a body or a query may have; any other name is a fault."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = sorted(set(data) - set(self.fields))
        if unknown:
            raise serializers.ValidationError(
                {name: ["is not a field of this request"] for name in unknown[:MOST_FAULTS]}
            )
        return super().to_internal_value(data)


class Text(serializers.CharField):
    """Text as it was sent; `max_length` characters at most."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": MAX_TEXT, "trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        if type(data) is not str:
            raise serializers.ValidationError("must be text")
        return super().to_internal_value(data)


class Number(serializers.IntegerField):
    """A whole number: not text, not true, not 1.0."""

    def to_internal_value(self, data: Any) -> int:
        if type(data) is not int:
            raise serializers.ValidationError("must be a whole number")
        return super().to_internal_value(data)


class Digits(serializers.IntegerField):
    """A whole number of a query: ASCII digits and nothing else."""

    def to_internal_value(self, data: Any) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", data):
            raise serializers.ValidationError("must be a whole number, in digits")
        return super().to_internal_value(data)


class Identifier(serializers.UUIDField):
    """A UUID in its usual form."""

    def to_internal_value(self, data: Any) -> UUID:
        if type(data) is not str or len(data) != 36:
            raise serializers.ValidationError("must be a UUID")
        return super().to_internal_value(data)


class Moment(serializers.DateTimeField):
    """A time as in RFC 3339, with its zone: what a zone-less time means nobody can know."""

    form = re.compile(
        r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII
    )

    def to_internal_value(self, value: Any) -> datetime:
        if type(value) is not str or not self.form.fullmatch(value):
            raise serializers.ValidationError(
                "must be a time with its zone, such as 2027-01-31T09:30:00Z"
            )
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise serializers.ValidationError("there is no such time") from error


@extend_schema_field({})
class Value(serializers.Field[JSON, JSON, JSON, Any]):
    """Any JSON value, exactly as it was sent: null, false, 0 and "" are values too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_null=True, **options)

    def to_internal_value(self, data: JSON) -> JSON:
        return data

    def to_representation(self, value: JSON) -> JSON:
        return value


def body(request: Request, kind: type[Fields]) -> dict[str, Any]:
    """The fields of the body.

    Raises InvalidRequest, BodyTooLarge, LengthRequired, UnsupportedMediaType.
    """
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired
    sent = request.data
    if isinstance(sent, QueryDict):  # how an empty form looks
        raise UnsupportedMediaType(request.content_type or "")
    if not isinstance(sent, dict):
        raise InvalidRequest([Fault("", "must be an object")])
    return _valid(kind, sent)


def query(request: Request, kind: type[Fields]) -> dict[str, Any]:
    """The parameters of the address, each at most once. Raises InvalidRequest."""
    sent = request.query_params
    repeated = [name for name in sent if len(sent.getlist(name)) > 1]
    if repeated:
        raise InvalidRequest(Fault(name, "is given more than once") for name in repeated)
    return _valid(kind, {name: sent[name] for name in sent})


def _valid(kind: type[Fields], sent: Mapping[str, Any]) -> dict[str, Any]:
    read = kind(data=sent)
    if not read.is_valid():
        raise InvalidRequest(_faults("", read.errors))
    return dict(read.validated_data)


def _faults(path: str, found: Any) -> Iterable[Fault]:
    """What DRF found, flat: it nests by field and by place in a list."""
    if isinstance(found, Mapping):
        for name, inner in found.items():
            yield from _faults(f"{path}.{name}".removeprefix("."), inner)
    else:
        for reason in found if isinstance(found, list) else [found]:
            yield Fault(path, str(reason))


HEADER = "Idempotency-Key"


def idempotency_key(request: Request, given: str | None) -> str | None:
    """The key that makes a repeated request the same one: of the header, or `given` in the body.

    Raises InvalidRequest for a header that is no key, or another key than the body's.
    """
    sent = request.headers.get(HEADER)
    if sent is None:
        return given
    if not re.fullmatch(rf"[\x20-\x7e]{{1,{MAX_TEXT}}}", sent):
        reason = f"must be 1 to {MAX_TEXT} printable ASCII characters"
        raise InvalidRequest([Fault(HEADER, reason)])
    if given is not None and given != sent:
        raise InvalidRequest([Fault("key", f"is not the key of the header {HEADER}")])
    return sent


# The door ------------------------------------------------------------------------------------


def actor(request: Request) -> str:
    """Under which name the engine records what this client does: only who logged in counts."""
    kind = "user" if request.auth is None else "token"
    return f"{kind}:{request.user.get_username()}"


class HasRight(BasePermission):
    """The right that the view names for the method; a method without one does not exist."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        method = "GET" if request.method == "HEAD" else request.method or ""
        rights: Mapping[str, str] = getattr(view, "rights", {})
        if method not in rights:
            raise MethodNotAllowed(method)
        return request.user.has_perm(rights[method])


class Nothing(Fields):
    """A request without parameters, or without a body."""


class ApiView(APIView):
    """What all addresses of the API have in common."""

    permission_classes = (IsAuthenticated, HasRight)
    rights: ClassVar[Mapping[str, str]] = {}
    query_fields: ClassVar[type[Fields]] = Nothing  # of GET; no other method takes parameters
    query: dict[str, Any]

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {**super().default_response_headers, "Cache-Control": "no-store"}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Let in who has the right, with parameters that mean something."""
        super().initial(request, *args, **kwargs)
        reads = request.method in ("GET", "HEAD")
        self.query = query(request, self.query_fields if reads else Nothing)

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Answer only with what is on disk: a client may act on what it was told."""
        if response.status_code < 400 or response.status_code == 409:
            journal.harden()
        return super().finalize_response(request, response, *args, **kwargs)
