"""Who a token belongs to.

Apart from `tokens`, because Django REST framework loads it before its own views exist.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from drf_spectacular.contrib.knox_auth_token import KnoxTokenScheme
from knox import auth as knox
from knox.models import AuthToken
from rest_framework.exceptions import AuthenticationFailed


class TokenAuthentication(knox.TokenAuthentication):  # type: ignore[misc]
    """`Authorization: Token <token>`; what cannot be a token is refused before it is looked for."""

    def authenticate_credentials(self, token: bytes) -> tuple[User, AuthToken]:
        if not token.isalnum():
            raise AuthenticationFailed("Invalid token.")
        found: tuple[User, AuthToken] = super().authenticate_credentials(token)
        return found


class TokenScheme(KnoxTokenScheme):  # type: ignore[no-untyped-call]
    target_class = "config.authentication.TokenAuthentication"
    name = "token"
