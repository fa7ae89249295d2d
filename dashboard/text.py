"""Untrusted text, made safe to read: nothing invisible, nothing that turns or pushes the rest.

A person must see what will be sent. Characters that draw nothing, change direction or imitate a
space are shown as escapes; long padding becomes a marker with its length; what is cut says so.
The text itself is never changed: digests are over the original. Pure: imports no framework.
Rule: design, "shown = hashed = sent"; Unicode default-ignorable code points.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

# More of the same in a row is padding, which pushes what follows out of sight.
LONGEST_RUN = 8
LONGEST_BREAK = 3
# More marks on one letter paint over its neighbours.
MOST_MARKS = 3

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks that draw nothing although their category says otherwise.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_VARIATION = (
    range(0x180B, 0x1810),
    range(0xFE00, 0xFE10),
    range(0xE0100, 0xE01F0),
)

Kind = Literal["plain", "escape", "padding", "break"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one kind, in the form in which it may be shown."""

    kind: Kind
    text: str
    name: str = ""  # what an escape stands for, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """A text as it may be shown, and what about it is odd."""

    pieces: tuple[Piece, ...]
    length: int  # characters of the original
    shown: int  # characters of the original that the pieces cover
    warnings: tuple[str, ...]

    @property
    def is_cut(self) -> bool:
        return self.shown < self.length

    @property
    def plain(self) -> str:
        """The pieces as one line, for titles and logs."""
        return "".join(" " if piece.kind == "break" else piece.text for piece in self.pieces)


def is_hidden(character: str) -> bool:
    """Tell whether a character draws nothing, controls others, or imitates an ordinary space."""
    if character in " \n":
        return False
    category = unicodedata.category(character)
    if category in _HIDDEN_CATEGORIES or category == "Zs" or character in _BLANKS:
        return True
    return any(ord(character) in span for span in _VARIATION)


def name_of(character: str) -> str:
    """The character's name in Unicode, or its number."""
    controls = {"\t": "TAB", "\r": "CARRIAGE RETURN", "\x1b": "ESCAPE", "\x00": "NUL"}
    named: str | None = controls.get(character)
    return named or unicodedata.name(character, "") or "UNNAMED CHARACTER"


# Plain ASCII in one go; anything else as a run of one character.
_RUNS = re.compile(r"(?P<ascii>[!-~]+(?: [!-~]+)*)|(?P<one>.)(?P=one)*", re.DOTALL)


def _pieces(text: str, *, lines: bool) -> Iterator[tuple[int, Piece]]:
    """Cut `text` into stretches of one kind, each with the place in `text` where it ends.

    With `lines`, a line break stays one.
    """
    marks = 0
    for run in _RUNS.finditer(text):
        if run["ascii"]:
            marks = 0
            yield run.end(), Piece("plain", run["ascii"])
            continue
        character, count = run["one"], run.end() - run.start()
        is_mark = unicodedata.category(character) in ("Mn", "Me")
        marks = marks + count if is_mark else 0
        if is_hidden(character) or (is_mark and marks > MOST_MARKS):
            pieces = _escapes(character, count)
        elif character == "\n":
            pieces = _breaks(count, lines=lines)
        elif character == " " and (count > LONGEST_RUN or _at_an_end(run, text)):
            pieces = [Piece("padding", f"{count:,} space{'s' if count > 1 else ''}")]
        else:
            pieces = [Piece("plain", run.group())]
        for piece in pieces:
            yield run.end(), piece


def _within(pieces: Iterator[tuple[int, Piece]], limit: int | None) -> Iterator[tuple[int, Piece]]:
    """Stop after `limit` characters as shown: padding must not use up what is shown."""
    left = limit
    for end, piece in pieces:
        if left is not None and len(piece.text) >= left:
            if piece.kind != "plain":
                yield end, piece
            else:
                yield end - len(piece.text) + left, Piece("plain", piece.text[:left])
            return
        left = left - len(piece.text) if left is not None else None
        yield end, piece


def _at_an_end(run: re.Match[str], text: str) -> bool:
    """A space before or after everything changes the value and cannot be seen."""
    return run.start() == 0 or run.end() == len(text)


def _escapes(character: str, count: int) -> list[Piece]:
    escape = f"U+{ord(character):04X}"
    if count > LONGEST_RUN:
        return [Piece("escape", f"{escape} ({_times(count)})", name_of(character))]
    return [Piece("escape", escape, name_of(character))] * count


def _times(count: int) -> str:
    return f"{count:,} time{'s' if count > 1 else ''}"


def _breaks(count: int, *, lines: bool) -> list[Piece]:
    if count > LONGEST_BREAK:
        return [Piece("padding", f"{count:,} line breaks")]
    return [Piece("break", "\n") if lines else Piece("escape", "⏎", "LINE BREAK")] * count


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Put neighbouring plain pieces together."""
    plain = ""
    for piece in pieces:
        if piece.kind == "plain":
            plain += piece.text
            continue
        if plain:
            yield Piece("plain", plain)
            plain = ""
        yield piece
    if plain:
        yield Piece("plain", plain)


_UNUSUAL = re.compile(r"[^ -~\n]")
_WORDS = re.compile(r"[^\W\d_]+")


def _mixes_alphabets(word: str) -> bool:
    """Tell whether Latin letters stand beside Greek or Cyrillic ones, which look the same."""
    if word.isascii():
        return False
    scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
    return "LATIN" in scripts and bool(scripts & {"CYRILLIC", "GREEK"})


def warnings(text: str) -> tuple[str, ...]:
    """Say in words what is odd about a text; nothing for ordinary text."""
    unusual = Counter(_UNUSUAL.findall(text))
    found = Counter({name_of(c): count for c, count in unusual.items() if is_hidden(c)})
    said = [f"{name.lower()}, {_times(count)}" for name, count in sorted(found.items())]
    longest = max((len(run) for run in re.findall(" {2,}", text)), default=0)
    if longest > LONGEST_RUN:
        said.append(f"{longest:,} spaces in a row")
    if not text.isascii() and any(_mixes_alphabets(word) for word in _WORDS.findall(text)):
        said.append("letters of two alphabets that look alike in one word")
    return tuple(said)


def reveal(text: str, *, limit: int | None = None, lines: bool = False) -> Revealed:
    """Return `text` as it may be shown; at most `limit` characters as shown.

    The warnings are about the whole text, also where it is cut.
    """
    found = list(_within(_pieces(text, lines=lines), limit))
    return Revealed(
        pieces=tuple(_joined(piece for _, piece in found)),
        length=len(text),
        shown=found[-1][0] if found else 0,
        warnings=warnings(text),
    )
