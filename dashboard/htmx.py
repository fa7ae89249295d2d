"""One view, one page: whole for a browser, one fragment of it for htmx."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django_htmx.middleware import HtmxDetails

# Tells htmx to stop polling: what it shows will not change any more.
STOP_POLLING = 286
UNCHANGED = 204


class HtmxRequest(HttpRequest):
    """A request that the middleware has looked at, of a person who is logged in."""

    htmx: HtmxDetails
    user: User


def page(
    request: HtmxRequest,
    template: str,
    context: Mapping[str, Any],
    *,
    fragment: str = "",
    status: int = 200,
) -> HttpResponse:
    """Render the page, or only `fragment` for htmx. The address is the same for both."""
    chosen = fragment if fragment and request.htmx else template
    answer = render(request, chosen, dict(context), status=status)
    patch_vary_headers(answer, ["HX-Request"])
    # What was read for one person at one moment is not for anybody's cache.
    answer["Cache-Control"] = "private, no-store"
    return answer
