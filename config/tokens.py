"""Tokens: a password is exchanged for one, it expires, and only its hash is stored."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import authenticate
from drf_spectacular.utils import extend_schema
from knox.models import AuthToken
from rest_framework import serializers
from rest_framework.authentication import BasicAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from config.authentication import TokenAuthentication
from durable import requests
from durable.canonical import UNSTORABLE

LONGEST_NAME = 150
LONGEST_PASSWORD = 4096
WRONG = "The name or the password is wrong."


class _AddressThrottle(SimpleRateThrottle):
    """Tries from one address."""

    scope = "login"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return f"login-from:{self.get_ident(request)}"


class LoginFields(requests.Fields):
    """Who logs in. HTTP Basic does the same, with an empty body."""

    username = requests.Text(max_length=LONGEST_NAME)
    password = requests.Text(max_length=LONGEST_PASSWORD)


class TokenShown(serializers.Serializer[Any]):
    """A new token. It is shown this once."""

    token = serializers.CharField()
    expiry = serializers.DateTimeField()


class _Basic(BasicAuthentication):
    """Reads the header, and asks nobody yet."""

    def authenticate_credentials(
        self, userid: str, password: str, request: Request | None = None
    ) -> tuple[Any, Any]:
        return userid, password


class Login(APIView):
    """Exchange a password for a token."""

    # Checked by hand, after the throttle: guesses are what it counts.
    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (_AddressThrottle,)

    @extend_schema(
        operation_id="auth_login",
        request=LoginFields,
        responses={201: TokenShown},
        tags=["auth"],
    )
    def post(self, request: Request) -> Response:
        """Log in with HTTP Basic, or with name and password in the body; get a token."""
        requests.query(request, requests.Nothing)
        name, password = self._credentials(request)
        usable = not UNSTORABLE.search(name + password) and len(password) <= LONGEST_PASSWORD
        person = usable and authenticate(request._request, username=name, password=password)
        if not person:
            raise AuthenticationFailed(WRONG)
        stored, token = AuthToken.objects.create(user=person)
        shown = TokenShown({"token": token, "expiry": stored.expiry})
        return Response(shown.data, status=201, headers={"Cache-Control": "no-store"})

    def _credentials(self, request: Request) -> tuple[str, str]:
        basic: tuple[str, str] | None = _Basic().authenticate(request)
        if basic is not None:
            requests.body(request, requests.Nothing)
            return basic
        sent = requests.body(request, LoginFields)
        return sent["username"], sent["password"]

    def get_authenticate_header(self, request: Request) -> str:
        return str(_Basic().authenticate_header(request))


class Logout(APIView):
    """End a token."""

    authentication_classes = (TokenAuthentication,)
    permission_classes = (IsAuthenticated,)

    @extend_schema(operation_id="auth_logout", request=None, responses={204: None}, tags=["auth"])
    def post(self, request: Request) -> Response:
        """End the token that this request carries."""
        requests.query(request, requests.Nothing)
        requests.body(request, requests.Nothing)
        request.auth.delete()
        return Response(status=204)
