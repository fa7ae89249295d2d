"""What waits for the person who is logged in."""

from __future__ import annotations

import hashlib
from typing import get_args

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from approvals import queries
from approvals.errors import InvalidCursor
from dashboard.access import allowed
from dashboard.htmx import UNCHANGED, HtmxRequest, page

TITLES: dict[queries.View, str] = {
    "needs_me": "Needs me",
    "waiting_for_others": "Waiting for others",
    "decided": "Decided",
}


@require_safe
@allowed("approvals.view_approval")
def inbox(request: HtmxRequest) -> HttpResponse:
    """The requests of one view, most urgent first."""
    view = _view(request.GET.get("view", ""))
    try:
        found = queries.inbox(
            request.user, tenant=settings.TENANT, view=view, after=request.GET.get("after")
        )
    except InvalidCursor:
        return redirect("dashboard:inbox")
    mark = _mark(found)
    if request.htmx:
        # Rows never move under the pointer: only the news that they would.
        if request.GET.get("seen") == mark:
            return HttpResponse(status=UNCHANGED)
        return page(request, "dashboard/_inbox_news.html", {"view": view})
    return page(
        request,
        "dashboard/inbox.html",
        {
            "section": "inbox",
            "view": view,
            "views": _views(request, view),
            "found": found,
            "mark": mark,
        },
    )


def _view(asked: str) -> queries.View:
    return next((view for view in get_args(queries.View) if view == asked), "needs_me")


def _views(request: HtmxRequest, current: queries.View) -> list[tuple[queries.View, str, str]]:
    counts = queries.counts(request.user, tenant=settings.TENANT)
    numbers = {
        "needs_me": _bounded(counts.needs_me),
        "waiting_for_others": _bounded(counts.waiting_for_others),
    }
    return [(view, title, numbers.get(view, "")) for view, title in TITLES.items()]


def _bounded(number: int) -> str:
    if number >= queries.MOST_COUNTED:
        return f"{queries.MOST_COUNTED - 1}+"
    return str(number)


def _mark(found: queries.Page) -> str:
    """Changes when the list does."""
    shown = ",".join(f"{approval.id}/{approval.status}" for approval in found.approvals)
    return hashlib.sha256(shown.encode()).hexdigest()[:16]
