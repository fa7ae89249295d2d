"""The sandbox's one page for people: what was asked of each service, and how each behaves."""

from collections.abc import Mapping
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template
from urllib.parse import parse_qsl, urlencode

from examples.sandbox import catalogue, switches
from examples.sandbox.catalogue import Service
from examples.sandbox.store import Store
from examples.sandbox.switches import LOOKUP, MEANING, ON_LOOKUP, Behaviour, Switch
from examples.strict_json import Json

_HERE = files("examples.sandbox")
STYLE = _HERE.joinpath("style.css").read_bytes()
ICON = _HERE.joinpath("icon.svg").read_bytes()
PAGE = Template(_HERE.joinpath("page.html").read_text(encoding="utf-8"))
PAGE_SIZE = 50
TITLES = {Service.PAYMENTS: "Payments", Service.CARRIER: "Carrier", Service.MAIL: "Mail"}


def home(store: Store, query: Mapping[str, str], *, problem: str = "") -> str:
    """The whole page. `query` may hold `service` and `page`; anything else in it is ignored."""
    service = query.get("service", "") if query.get("service") in set(Service) else ""
    total = store.count(service)
    last = max(1, -(-total // PAGE_SIZE))
    page = min(_number(query.get("page", "")), last)
    filters = {"service": service} if service else {}
    entries = store.ledger(filters, limit=PAGE_SIZE, newest=True, offset=(page - 1) * PAGE_SIZE)
    counts, active = store.counts(), store.switches()
    return PAGE.substitute(
        refresh=_address(service, page),
        problem=f'<p class="note bad" role="alert">{escape(problem)}</p>' if problem else "",
        verdict=_verdict(store.doubled()),
        services="".join(_service(each, counts, active) for each in Service),
        tabs=_tabs(service),
        entries=_entries(entries),
        paging=_paging(service, page, last, total),
    )


def read_form(body: bytes) -> dict[str, Json]:
    """The JSON that a switch form stands for; empty fields are left out."""
    text = body.decode(errors="replace")
    fields = {name: value for name, value in parse_qsl(text) if value.strip()}
    wish: dict[str, Json] = dict(fields)
    if "seconds" in fields:
        wish["seconds"] = _float(fields["seconds"])
    if fields.get("times", "").isdecimal():
        wish["times"] = int(fields["times"][:9])
    return wish


def _float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _number(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def _address(service: str, page: int) -> str:
    wanted = {"service": service} if service else {}
    if page > 1:
        wanted["page"] = str(page)
    return escape("/?" + urlencode(wanted) if wanted else "/")


def _verdict(doubled: list[dict[str, Json]]) -> str:
    if not doubled:
        return '<p class="note good">✓ Nothing was done twice.</p>'
    items = "".join(
        f"<li>{escape(each['service'])}: {escape(each['operation'])} for"
        f" {escape(each['business'])}, {each['applied']} times</li>"
        for each in doubled
    )
    return f'<div class="note bad" role="alert">✕ Done more than once:<ul>{items}</ul></div>'


def _service(service: Service, counts: list[dict[str, Json]], active: list[Switch]) -> str:
    mine = [each for each in counts if each["service"] == service]
    here = [switch for switch in active if switch.service is service]
    rules = "".join(_rule(switch) for switch in here) or '<li class="calm">Behaves normally.</li>'
    figures = "".join(
        f"<div><dd>{sum(each[name] for each in mine):,}</dd><dt>{label}</dt></div>"
        for name, label in (
            ("requests", "asked"),
            ("applied", "done"),
            ("deduplicated", "repeated"),
            ("unanswered", "no answer"),
        )
    )
    return (
        f'<article class="card"><h2>{TITLES[service]}</h2><dl class="figures">{figures}</dl>'
        f'<ul class="rules">{rules}</ul>'
        f"<details><summary>Change behaviour</summary>{_form(service)}</details></article>"
    )


def _rule(switch: Switch) -> str:
    scope = {"": "every request", LOOKUP: "look-ups"}.get(switch.operation, switch.operation)
    if switch.match:
        scope += f" with “{switch.match}” in its key"
    extras = []
    if switch.behaviour in switches.WAITING:
        extras.append(f"{switch.seconds:g} s")
    if switch.retry_after:
        extras.append(f"Retry-After: {switch.retry_after}")
    if switch.times is not None:
        extras.append(f"next {switch.times} only")
    return (
        f'<li><form method="post" action="/switches/{switch.number}/remove">'
        f"<span><b>{escape(_sentence(switch.behaviour))}</b>"
        f"<small>{escape(' · '.join([scope, *extras]))}</small></span>"
        f'<button class="quiet">Remove<span class="unseen"> this switch</span></button>'
        f"</form></li>"
    )


def _sentence(behaviour: Behaviour) -> str:
    meaning = MEANING[behaviour]
    return meaning[0].upper() + meaning[1:]


def _form(service: Service) -> str:
    operations = "".join(
        f'<option value="{name}">{label}</option>'
        for name, label in (
            ("", "requests"),
            *((name, name) for name in catalogue.names(service)),
            (LOOKUP, "look-ups"),
        )
    )
    ordinary = switches.allowed(service, "")
    special = [each for each in ON_LOOKUP if each not in ordinary]
    return (
        '<form class="switch" method="post" action="/switches">'
        f'<input type="hidden" name="service" value="{service}">'
        f'<label>For <select name="operation">{operations}</select></label>'
        '<label>With this in its key <input name="match" maxlength="200"></label>'
        f'<label class="wide">Do this <select name="behaviour">{_options(ordinary)}'
        f'<optgroup label="Look-ups only">{_options(special)}</optgroup></select></label>'
        '<label>Seconds <input name="seconds" type="number" min="0" max="3600" step="any"></label>'
        '<label>Retry-After <input name="retry_after" maxlength="200"></label>'
        "<label>Only the next"
        ' <input name="times" type="number" min="1" max="1000000" placeholder="all"></label>'
        '<button class="button">Set</button></form>'
    )


def _options(behaviours: tuple[Behaviour, ...] | list[Behaviour]) -> str:
    return "".join(
        f'<option value="{behaviour}">{escape(_sentence(behaviour))}</option>'
        for behaviour in behaviours
    )


def _tabs(current: str) -> str:
    tabs = (("", "All"), *((service.value, TITLES[service]) for service in Service))
    return "".join(
        f'<a href="{_address(service, 1)}"{_current(service == current)}>{title}</a>'
        for service, title in tabs
    )


def _current(is_current: bool) -> str:
    return ' aria-current="true"' if is_current else ""


def _entries(entries: list[dict[str, Json]]) -> str:
    if not entries:
        return '<p class="empty">No requests yet.</p>'
    heads = ("No.", "Time (UTC)", "Request", "Key", "Run", "Behaviour", "What happened", "Answer")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(_entry(entry) for entry in entries)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _entry(entry: dict[str, Json]) -> str:
    happened, tone = _happened(entry)
    answer, answer_tone = _answer(entry)
    behaviour = str(entry["behaviour"])
    time = datetime.fromisoformat(entry["time"])
    cells = (
        ("num", "No.", str(entry["number"])),
        ("time", "Time (UTC)", f"<time>{time:%H:%M:%S}.{time.microsecond // 1000:03d}</time>"),
        ("asked", "Request", _asked(entry)),
        ("key", "Key", f"<code>{escape(entry['key']) or '—'}</code>"),
        ("run", "Run", _run(entry)),
        ("how", "Behaviour", _tag(behaviour, "calm" if behaviour == "ok" else "warn")),
        ("what", "What happened", _tag(happened, tone)),
        ("answer", "Answer", _tag(answer, answer_tone)),
    )
    row = "".join(
        f'<td class="{name}" data-label="{label}">{content}</td>' for name, label, content in cells
    )
    return f"<tr>{row}</tr>"


def _asked(entry: dict[str, Json]) -> str:
    """What was asked for; the body unfolds under it."""
    service = f"<b>{TITLES[Service(entry['service'])]}</b>"
    if entry["method"] == "GET":
        return f"{service} look up {escape(entry['operation'])}"
    name = f"{service} {escape(entry['operation'])}"
    body = escape(entry["body"][:20_000])
    return f"<details><summary>{name}</summary><pre>{body}</pre></details>" if body else name


def _run(entry: dict[str, Json]) -> str:
    if not entry["run"]:
        return "—"
    run = escape(entry["run"])
    fence = "" if entry["fence"] is None else f" <small>fence {entry['fence']}</small>"
    return f'<code title="{run}">{run[-12:] if len(run) == 36 else run}</code>{fence}'


def _happened(entry: dict[str, Json]) -> tuple[str, str]:
    if entry["applied"]:
        return "✓ done", "good"
    if entry["deduplicated"]:
        return "↺ done before", "calm"
    return ("read" if entry["method"] == "GET" else "nothing"), "calm"


def _answer(entry: dict[str, Json]) -> tuple[str, str]:
    status = entry["status"]
    if status == "never answered":
        return "… never answered", "warn"
    is_fine = status < 400 or (entry["method"] == "GET" and status == 404)
    return f"{status} {entry['code']}".strip(), "calm" if is_fine else "bad"


def _tag(text: str, tone: str) -> str:
    return f'<span class="tag {tone}">{escape(text)}</span>'


def _paging(service: str, page: int, last: int, total: int) -> str:
    newer = f'<a class="button" rel="prev" href="{_address(service, page - 1)}">Newer</a>'
    older = f'<a class="button" rel="next" href="{_address(service, page + 1)}">Older</a>'
    parts = (
        newer if page > 1 else "",
        f"<span>Page {page} of {last} · {total:,} requests</span>",
        older if page < last else "",
    )
    return f'<nav class="paging" aria-label="Pages">{"".join(parts)}</nav>'
