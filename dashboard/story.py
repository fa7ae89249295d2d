"""The timeline as people read it: one entry per call, in five lanes, with a bar for its time.

Pure: takes a page of events and returns entries. The list is the truth; the bars draw it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median

from dashboard import words
from durable import timeline
from durable.timeline import EventRow, Lane
from durable.wording import duration, moment, person

LANES: dict[Lane, tuple[str, str]] = {
    Lane.STEPS: ("Steps", "step"),
    Lane.EFFECTS: ("Side effects", "send"),
    Lane.PEOPLE: ("People", "person"),
    Lane.OWNERSHIP: ("Ownership", "key"),
    Lane.OTHER: ("Other", "dot"),
}
WIDTH = 1000
# A pause this much longer than the usual one is drawn short, and said in words instead.
LONG_PAUSE = timedelta(seconds=30)
MANY_TIMES = 20
FOLD = 0.04


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of the drawn axis, in thousandths of its width."""

    x: int
    width: int


@dataclass(slots=True, kw_only=True)
class Entry:
    """One call, question or lease: everything that happened to it on this page."""

    lane: Lane
    key: str
    events: list[EventRow]
    until: datetime  # a lease lasts as long as anything was written under it
    bar: Bar = field(default_factory=lambda: Bar(0, 1))

    @property
    def first(self) -> EventRow:
        return self.events[0]

    @property
    def last(self) -> EventRow:
        return self.events[-1]

    @property
    def lane_name(self) -> str:
        return LANES[self.lane][0]

    @property
    def state(self) -> words.Word:
        """How it stands, from its last event."""
        if self.last.type == "approval.decided":
            return words.word("approval", self.last.text("status"))
        if self.last.type == "external.reconciled":
            return _reconciled(self.last)
        return words.word("event", self.last.type)

    @property
    def title(self) -> str:
        """What it is: the name of the step or action, or of the event when it has none."""
        if self.lane == Lane.OWNERSHIP:
            worker = next((e.text("worker") for e in self.events if e.text("worker")), "")
            return f"Lease {self.first.epoch} · {worker or 'a worker'}"
        for name in ("operation", "title", "question", "name"):
            found = next((e.text(name) for e in self.events if e.text(name)), "")
            if found:
                return found
        return self.first.node or words.word("event", self.first.type).text

    @property
    def is_named(self) -> bool:
        """Its title is not already the word for its state."""
        return self.title != self.state.text

    @property
    def took(self) -> str:
        """How long from its first event to its last; empty for a moment."""
        span = self.until - self.first.at
        if span < timedelta(milliseconds=1):
            return ""
        milliseconds = span / timedelta(milliseconds=1)
        return f"{milliseconds:.0f} ms" if milliseconds < 1000 else duration(span)

    @property
    def actor(self) -> str:
        """The last person who had a hand in it."""
        return next((person(e.actor) for e in reversed(self.events) if e.actor), "")

    @property
    def says(self) -> list[tuple[str, str]]:
        """The telling parts of its payloads: a name and an untrusted text each."""
        return [pair for event in self.events for pair in _telling(event)][-4:]


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which nothing was recorded."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A page of a run's log: the entries, newest first, and where each is drawn."""

    entries: list[Entry | Gap]
    lanes: list[tuple[Lane, str, str, list[Entry]]]
    folds: list[int]
    start: datetime | None
    end: datetime | None


def tell(log: timeline.Timeline) -> Story:
    """Group a page of events into entries."""
    events = sorted(log.events, key=lambda event: event.seq)
    entries = _entries(events)
    axis = _Axis([event.at for event in events])
    for entry in entries:
        left = axis.place(entry.first.at)
        entry.bar = Bar(left, max(axis.place(entry.until) - left, 4))
    return Story(
        entries=list(_with_gaps(entries, events)),
        lanes=[
            (lane, name, icon, [entry for entry in entries if entry.lane == lane])
            for lane, (name, icon) in LANES.items()
        ],
        folds=axis.folds,
        start=events[0].at if events else None,
        end=events[-1].at if events else None,
    )


def _entries(events: Iterable[EventRow]) -> list[Entry]:
    """One entry per call; a node that runs again is a new one."""
    found: list[Entry] = []
    open_: dict[str, Entry] = {}
    for event in events:
        lane, key = timeline.lane_of(event.type), _key(event)
        entry = None if event.type == "node.started" else open_.get(key)
        if entry is None:
            entry = Entry(lane=lane, key=key, events=[event], until=event.at)
            found.append(entry)
            open_[key] = entry
        else:
            entry.events.append(event)
        entry.until = event.at
        owner = open_.get(f"ownership:{event.epoch}")
        if owner is not None:
            owner.until = event.at
    return sorted(found, key=lambda entry: entry.last.seq, reverse=True)


def _key(event: EventRow) -> str:
    """What an event belongs to."""
    lane = timeline.lane_of(event.type)
    if lane == Lane.OWNERSHIP:
        # A loss is written by whoever took over, about the lease before.
        lost = event.text("epoch") if event.type == "lease.lost" else ""
        return f"{lane}:{lost or event.epoch}"
    if event.task_key:
        return f"{lane}:{event.task_key}"
    if event.node and event.type.startswith("node."):
        return f"{lane}:node:{event.node}"
    return f"{lane}:seq:{event.seq}"


def _with_gaps(entries: Sequence[Entry], events: Sequence[EventRow]) -> Iterable[Entry | Gap]:
    """Say between two entries, newest first, that nothing was recorded for long."""
    times = [event.at for event in events]
    for index, entry in enumerate(entries):
        yield entry
        if index + 1 == len(entries):
            continue
        # The moment before this entry's last event: silence there is silence for everybody.
        at = bisect_right(times, entry.last.at) - 1
        silence = times[at] - times[at - 1] if at > 0 else timedelta()
        if silence > LONG_PAUSE:
            yield Gap(f"{duration(silence)} with nothing recorded")


class _Axis:
    """Where a moment is drawn. Long pauses are folded, so that work stays visible beside waits."""

    def __init__(self, times: Sequence[datetime]) -> None:
        self._times = times
        gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
        usual = median([gap for gap in gaps if gap > 0] or [1.0])
        longest = max(MANY_TIMES * usual, LONG_PAUSE.total_seconds())
        kept = sum(gap for gap in gaps if gap <= longest) or 1.0
        drawn = [gap if gap <= longest else FOLD * kept for gap in gaps]
        total = sum(drawn) or 1.0
        self._places = [0.0]
        for gap in drawn:
            self._places.append(self._places[-1] + gap / total)
        self.folds = [
            round(WIDTH * (self._places[index] + self._places[index + 1]) / 2)
            for index, gap in enumerate(gaps)
            if gap > longest
        ]

    def place(self, at: datetime) -> int:
        """The place of a moment that one of the events has."""
        index = max(bisect_right(self._times, at) - 1, 0)
        return round((WIDTH - 4) * self._places[index])


def _reconciled(event: EventRow) -> words.Word:
    outcomes = {
        "happened": words.word("record", "succeeded"),
        "not_found": words.Word("Not found yet", "question", "waiting"),
    }
    return outcomes.get(event.text("outcome"), words.word("record", "unknown"))


_TELLING = ("key", "resource", "reason", "value", "left")
_TIMES = ("due", "until", "decide_by")


def _telling(event: EventRow) -> Iterable[tuple[str, str]]:
    """The parts of a payload that say most, each with its name."""
    error = timeline.error_text(event)
    if error:
        yield "error", error
        return
    if event.payload.get("result") is not None:
        yield "result", event.text("result")
    for name in _TELLING:
        if event.text(name):
            yield name, event.text(name)
    for name in _TIMES:
        if event.text(name):
            yield name.replace("_", " "), _said_time(event.text(name))


def _said_time(text: str) -> str:
    try:
        return moment(datetime.fromisoformat(text).astimezone(UTC))
    except ValueError:
        return text
