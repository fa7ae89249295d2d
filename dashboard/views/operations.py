"""What needs an operator now: stopped runs, unknown outcomes, runs nobody has taken, messages."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpResponse
from django.views.decorators.http import require_safe

from dashboard.access import allowed
from dashboard.htmx import HtmxRequest, page
from durable import journal, queries


@require_safe
@allowed("durable.operate_run")
def operations(request: HtmxRequest) -> HttpResponse:
    """Everything that waits for an operator, on one page."""
    found = queries.operations(tenant=settings.TENANT)
    answer = page(
        request,
        "dashboard/operations.html",
        {"section": "operations", "found": found, "now": found.now},
    )
    journal.harden()
    return answer
