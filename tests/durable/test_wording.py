from datetime import timedelta

import pytest

from durable import wording


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=185), "3 min 5 s"),
        (timedelta(hours=1, seconds=5), "1 h"),
        (timedelta(days=2, hours=4, minutes=9), "2 d 4 h"),
    ],
)
def test_a_span_is_said_in_its_two_largest_units(span, words):
    assert wording.duration(span) == words
