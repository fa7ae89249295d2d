"""Orders are read strictly, and a file of them can be started again and again."""

import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from durable.models import Run
from examples.orders import BadLine, parse

SAMPLE = Path(__file__).parents[2] / "examples" / "data" / "orders.jsonl"
ORDER: dict[str, Any] = {
    "order_id": "SF-1",
    "customer_id": "ALDER",
    "ordered_on": "2026-03-02",
    "ship_to": {
        "name": "Alder & Søn",
        "street": "Nørrebrogade 112",
        "city": "København N",
        "region": None,
        "postal_code": None,
        "country": "Denmark",
    },
    "lines": [{"sku": "SF-A", "unit_price": "14.00", "quantity": 2, "discount": "0.05"}],
    "total": "26.60",
    "currency": "DKK",
}


def changed(path, value):
    """The order with one field changed; the path is like "lines.0.quantity"."""
    order = json.loads(json.dumps(ORDER))
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = order
    for parent in parents:
        place = place[parent]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return json.dumps(order)


def test_a_good_line_is_the_order_with_its_amounts_still_text():
    assert parse(json.dumps(ORDER), 1) == ORDER


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("order_id", 10248, "order_id"),
        ("order_id", "", "order_id"),
        ("order_id", "a:b", "order_id"),
        ("order_id", "SF-1\n", "order_id"),
        ("customer_id", None, "customer_id"),
        ("customer_id", KeyError, "customer_id"),
        ("ordered_on", "2026-02-30", "ordered_on"),
        ("ordered_on", "20260302", "ordered_on"),
        ("ship_to", [], "ship_to"),
        ("ship_to.region", KeyError, "ship_to.region"),
        ("ship_to.region", 7, "ship_to.region"),
        ("ship_to.city", None, "ship_to.city"),
        ("ship_to.city", "a\u0000b", "ship_to.city"),
        ("ship_to.planet", "Earth", "ship_to.planet"),
        ("lines", [], "lines"),
        ("lines", {}, "lines"),
        ("lines.0", "SF-A", "lines[0]"),
        ("lines.0.sku", KeyError, "lines[0].sku"),
        ("lines.0.quantity", -1, "lines[0].quantity"),
        ("lines.0.quantity", 0, "lines[0].quantity"),
        ("lines.0.quantity", 1.0, "lines[0].quantity"),
        ("lines.0.quantity", True, "lines[0].quantity"),
        ("lines.0.quantity", "1", "lines[0].quantity"),
        ("lines.0.quantity", 2**60, "lines[0].quantity"),
        ("lines.0.unit_price", 14.0, "lines[0].unit_price"),
        ("lines.0.unit_price", "-14.00", "lines[0].unit_price"),
        ("lines.0.unit_price", "1e3", "lines[0].unit_price"),
        ("lines.0.unit_price", "NaN", "lines[0].unit_price"),
        ("lines.0.unit_price", "١٤", "lines[0].unit_price"),
        ("lines.0.unit_price", "14.", "lines[0].unit_price"),
        ("lines.0.discount", "1.01", "lines[0].discount"),
        ("lines.0.discount", "-0.1", "lines[0].discount"),
        ("total", "26.6", "total"),
        ("total", "Infinity", "total"),
        ("total", 26.6, "total"),
        ("currency", "dkk", "currency"),
        ("colour", "red", "colour"),
    ],
)
def test_a_bad_field_is_refused_with_its_path(path, value, shown):
    with pytest.raises(BadLine) as caught:
        parse(changed(path, value), 7)
    assert (caught.value.number, caught.value.path) == (7, shown)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        "{",
        '{"order_id": NaN}',
        '{"order_id": -Infinity}',
        json.dumps(ORDER).replace('"total"', '"order_id": "SF-2", "total"'),
        json.dumps(ORDER).replace("26.60", "\\ud800"),
        json.dumps(ORDER) + json.dumps(ORDER),
        "[" * 100_000,
        '{"order_id": ' + "9" * 5000 + "}",
        " " * 2_000_000,
    ],
)
def test_what_is_no_single_json_object_is_refused(line):
    with pytest.raises(BadLine) as caught:
        parse(line, 3)
    assert str(caught.value).startswith("line 3: ")


def test_the_sample_orders_are_good_and_their_totals_right():
    orders = [
        parse(line, number)
        for number, line in enumerate(SAMPLE.read_text(encoding="utf-8").splitlines(), start=1)
    ]
    for order in orders:
        total = sum(
            Decimal(line["unit_price"]) * line["quantity"] * (1 - Decimal(line["discount"]))
            for line in order["lines"]
        )
        rounded = Decimal(total).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
        assert str(rounded) == order["total"], order["order_id"]

    assert len({order["order_id"] for order in orders}) == len(orders) == 40
    assert sum(Decimal(order["total"]) > 5000 for order in orders) == 4


# The command


pytestmark = pytest.mark.django_db


def started():
    """Every run there is, as (key, actor, tenant)."""
    return list(Run.objects.values_list("start_key", "started_by", "tenant"))


def orders(path, capsys, *options):
    """Run the command; return its exit code and what it wrote."""
    code: str | int | None = 0
    try:
        call_command("orders", str(path), *options)
    except SystemExit as leaving:
        code = leaving.code
    written = capsys.readouterr()
    return code, written.out, written.err


def test_orders_are_started_once_however_often_the_file_is_read(capsys):
    assert orders(SAMPLE, capsys)[:2] == (0, "started 40, skipped 0, bad 0\n")
    assert orders(SAMPLE, capsys)[:2] == (0, "started 0, skipped 40, bad 0\n")
    assert len(started()) == 40


def test_who_started_them_and_for_whom_is_said(capsys):
    User.objects.create_user("ana")
    orders(SAMPLE, capsys, "--user", "ana", "--tenant", "north")

    assert {(actor, tenant) for _, actor, tenant in started()} == {("user:ana", "north")}


def test_orders_that_nobody_in_particular_started_can_be_approved_by_anyone(capsys):
    orders(SAMPLE, capsys)

    assert {actor for _, actor, _ in started()} == {"system:orders"}
    with pytest.raises(CommandError, match="no user 'nobody'"):
        call_command("orders", str(SAMPLE), "--user", "nobody")


def test_bad_lines_are_named_and_do_not_stop_the_others(capsys, tmp_path):
    other = json.dumps({**ORDER, "total": "1.00"})
    lines = [json.dumps(ORDER), "", "{", changed("total", "-1"), other, changed("order_id", "SF-2")]
    path = tmp_path / "orders.jsonl"
    path.write_text("\ufeff" + "\r\n".join(lines) + "\n", encoding="utf-8")
    code, out, err = orders(path, capsys)

    assert (code, out) == (1, "started 2, skipped 0, bad 3\n")
    assert [line.split(":")[0] for line in err.splitlines()] == ["line 3", "line 4", "line 5"]
    assert "order SF-1 was already started with other contents" in err


def test_a_file_that_cannot_be_read_starts_nothing(tmp_path):
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(ORDER).encode() + b"\n" + "Søn".encode("latin-1") + b"\n")

    for path, message in (
        (tmp_path / "missing.jsonl", "There is no file"),
        (tmp_path, "is a directory"),
        (latin, "is not UTF-8: line 2"),
    ):
        with pytest.raises(CommandError, match=message):
            call_command("orders", str(path))
    assert started() == []


def test_an_empty_file_starts_nothing(capsys, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()

    assert orders(path, capsys)[:2] == (0, "started 0, skipped 0, bad 0\n")
