"""The few tags that every page uses: untrusted text, times, states and icons."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard import text as texts
from dashboard import words
from durable import wording
from durable.models import Run

register = template.Library()

_MARKUP = {
    "plain": "{text}",
    "escape": '<span class="escape" title="{name}">{text}</span>',
    "padding": '<span class="escape">{text}</span>',
    "break": "<br>",
}


@register.simple_tag
def shown(
    value: object, limit: int | None = None, lines: bool = False, full: str = ""
) -> SafeString:
    """Show untrusted text: odd characters as escapes, isolated, and said to be cut when it is.

    `full` is the address of the whole text, for where `limit` cuts it.
    """
    revealed = texts.reveal("" if value is None else str(value), limit=limit, lines=lines)
    pieces = format_html_join(
        "",
        "{}",
        (
            (format_html(_MARKUP[piece.kind], text=piece.text, name=piece.name.lower()),)
            for piece in revealed.pieces
        ),
    )
    body = format_html('<bdi class="text" hx-disable>{}</bdi>', pieces)
    if not revealed.is_cut:
        return body
    said = format_html(
        '{} <span class="cut">… {} of {} characters shown.</span>',
        body,
        f"{revealed.shown:,}",
        f"{revealed.length:,}",
    )
    return format_html('{} <a href="{}">Show all</a>', said, full) if full else said


@register.filter
def plainly(value: object) -> str:
    """Untrusted text as one short line, for titles."""
    return texts.reveal(str(value or ""), limit=120).plain


@register.filter
def oddities(value: object) -> tuple[str, ...]:
    """What is odd about a text, in words."""
    return texts.warnings(str(value or ""))


@register.filter
def fingerprint(value: object) -> str:
    """The SHA-256 of a text, so that two people can compare what they see."""
    return hashlib.sha256(str(value).encode("utf-8", "surrogatepass")).hexdigest()


@register.filter
def person(actor: str) -> str:
    """Who it was, in a reader's words."""
    return wording.person(actor)


@register.simple_tag(takes_context=True)
def moment(context: dict[str, Any], at: datetime | None, relative: bool = True) -> SafeString:
    """A time in UTC, and how long ago or ahead by the database's clock if the page has it."""
    if at is None:
        return format_html('<span class="soft">{}</span>', "never")
    now = context.get("now") or timezone.now()
    shown_at = at.strftime("%d %b %H:%M:%S UTC" if at.year == now.year else "%d %b %Y %H:%M UTC")
    stamp = format_html(
        '<time datetime="{}">{}</time>', at.isoformat(timespec="milliseconds"), shown_at
    )
    if not relative:
        return stamp
    return format_html('{} <span class="soft">{}</span>', stamp, wording.ago(at, now))


@register.simple_tag(takes_context=True)
def since(context: dict[str, Any], at: datetime | None) -> SafeString:
    """How long ago or ahead, with the exact time in the markup."""
    if at is None:
        return format_html('<span class="soft">{}</span>', "never")
    now = context.get("now") or timezone.now()
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        at.isoformat(timespec="milliseconds"),
        wording.moment(at),
        wording.ago(at, now),
    )


@register.simple_tag
def icon(name: str) -> SafeString:
    """A drawing from the sprite; the word beside it says the same."""
    return format_html('<svg class="icon" aria-hidden="true"><use href="#icon-{}"/></svg>', name)


def _badge(word: words.Word) -> SafeString:
    return format_html(
        '<span class="badge tone-{}">{}{}</span>', word.tone, icon(word.icon), word.text
    )


@register.simple_tag
def badge(kind: str, state: str) -> SafeString:
    """A state as icon, word and colour."""
    return _badge(words.word(kind, state))


@register.simple_tag(takes_context=True)
def run_badge(context: dict[str, Any], run: Run) -> SafeString:
    """A run's state, with the two that its status does not say: left by its worker, cancelling."""
    lease = getattr(run, "lease", None)
    if lease is None or run.is_final:
        return _badge(words.word("run", run.status))
    now = context.get("now") or timezone.now()
    if lease.owner is not None and (lease.expires_at is None or lease.expires_at <= now):
        return _badge(words.LEFT)
    if lease.cancel_requested:
        return _badge(words.CANCELLING)
    return _badge(words.word("run", run.status))


@register.filter
def clock(at: datetime) -> str:
    """The time of day in UTC, to the millisecond."""
    return at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}"
