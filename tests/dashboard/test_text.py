import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import text

# Case D02: what agents have put into prompts to hide something.
HIDING = {
    "right-to-left override": "\u202e",
    "left-to-right isolate": "\u2066",
    "zero width space": "\u200b",
    "zero width no-break space": "\ufeff",
    "variation selector-17": "\U000e0100",
    "line separator": "\u2028",
    "escape": "\x1b",
    "tag latin small letter a": "\U000e0061",
    "no-break space": "\u00a0",
    "hangul filler": "\u3164",
    "braille pattern blank": "\u2800",
    "combining grapheme joiner": "\u034f",
    "soft hyphen": "\u00ad",
    "carriage return": "\r",
    "tab": "\t",
}


@pytest.mark.parametrize(("name", "character"), HIDING.items())
def test_a_character_that_hides_something_is_shown_as_an_escape_and_named(name, character):
    """D02"""
    shown = text.reveal(f"pay{character}ACME")
    assert character not in shown.plain
    assert f"U+{ord(character):04X}" in shown.plain
    assert shown.warnings == (f"{name}, 1 time",)


@pytest.mark.parametrize("filler", [" ", "\u00a0", "\n", "\u3000"])
def test_five_thousand_blanks_do_not_push_the_rest_out_of_sight(filler):
    """D02"""
    shown = text.reveal("pay 10" + filler * 5000 + "and 9,000,000", limit=200)
    assert "5,000" in shown.plain
    assert shown.plain.endswith("and 9,000,000")
    assert not shown.is_cut


def test_what_is_cut_says_how_much_is_shown():
    shown = text.reveal("x" * 700, limit=600)
    assert (shown.is_cut, shown.shown, shown.length) == (True, 600, 700)


def test_a_warning_is_about_the_part_that_is_cut_too():
    assert text.reveal("x" * 700 + "\u202e", limit=600).warnings


def test_a_space_at_either_end_is_shown():
    assert text.reveal("ACME ").plain == "ACME1 space"
    assert text.reveal(" ACME").plain == "1 spaceACME"


def test_letters_of_two_alphabets_in_one_word_are_warned_about():
    assert text.warnings("pay\u0440al.com")
    assert not text.warnings("paypal.com, Zürich, Ω team")


def test_marks_heaped_on_one_letter_are_escaped():
    assert "U+0301" in text.reveal("a" + "\u0301" * 40).plain


def test_ordinary_text_stays_as_it_is():
    for ordinary in ("Café Röster, 5 + 3 €", "日本語の注文", "שלום", "two\n\nparagraphs"):
        shown = text.reveal(ordinary, lines=True)
        assert shown.plain.replace(" ", "") == ordinary.replace("\n", " ").replace(" ", "")
        assert shown.warnings == ()


@given(st.text())
def test_nothing_invisible_is_ever_left(anything):
    assert not any(text.is_hidden(c) for c in text.reveal(anything).plain)


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_a_cut_text_never_claims_to_be_whole(anything, limit):
    shown = text.reveal(anything, limit=limit)
    assert 0 <= shown.shown <= shown.length
    assert shown.is_cut or text.reveal(anything).pieces == shown.pieces


def test_a_hundred_thousand_odd_characters_are_revealed_within_seconds():
    started = time.monotonic()
    text.reveal("\u202ea" * 50_000 + "é" * 500_000)
    assert time.monotonic() - started < 10
