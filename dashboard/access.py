"""Who may open a page. Every view but login says which right it needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django_htmx.http import HttpResponseClientRedirect

from dashboard.htmx import HtmxRequest

P = ParamSpec("P")
View = Callable[Concatenate[HtmxRequest, P], HttpResponse]


def allowed(right: str) -> Callable[[View[P]], Callable[..., HttpResponse]]:
    """Ask for a login first, then for the right: without it the answer is 403."""

    def decorate(view: View[P]) -> Callable[..., HttpResponse]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            asked = cast(HtmxRequest, request)
            if not asked.user.is_authenticated:
                return _log_in(asked)
            if not asked.user.has_perm(right):
                raise PermissionDenied
            return view(asked, *args, **kwargs)

        return guarded

    return decorate


def _log_in(request: HtmxRequest) -> HttpResponse:
    """Send to the login page and back. htmx must leave the page: a login form has no place in it.

    A POST is not repeated after login; its page is opened instead.
    """
    if not request.htmx:
        return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
    shown = urlsplit(request.htmx.current_url_abs_path or "/")
    back = shown._replace(scheme="", netloc="").geturl()
    return HttpResponseClientRedirect(redirect_to_login(back, settings.LOGIN_URL)["Location"])


def actor(request: HtmxRequest) -> str:
    """Under which name the engine records what this person does."""
    return f"user:{request.user.get_username()}"
