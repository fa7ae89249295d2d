"""What the browser loads: ours, pinned, and allowed by a strict policy."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HTMX = ROOT / "dashboard/static/dashboard/htmx.min.js"
PAGES = sorted((ROOT / "templates").rglob("*.html"))


def test_htmx_is_the_exact_release_that_was_reviewed():
    """Version 4 gives `hx-disable` another meaning: a silent upgrade would remove a safety net."""
    script = HTMX.read_bytes()
    assert b'version:"2.0.11"' in script
    assert (
        hashlib.sha256(script).hexdigest()
        == "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
    )


def test_no_template_has_inline_script_or_style():
    for page in PAGES:
        markup = page.read_text()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|hx-on|javascript:", markup), page.name
        assert re.findall(r"<script(?![^>]* src=)", markup) == [], page.name


def test_no_template_marks_text_as_safe_or_turns_escaping_off():
    for page in PAGES:
        assert not re.search(r"\|safe|autoescape|mark_safe", page.read_text()), page.name


def test_every_form_that_posts_carries_its_own_token():
    for page in PAGES:
        for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", page.read_text(), re.DOTALL):
            assert "csrf_token" in form, page.name


def test_no_page_uses_attributes_of_htmx_4():
    for page in PAGES:
        assert "hx-ignore" not in page.read_text(), page.name
