"""Goods are put aside once, never below nothing, and put back once."""

import threading
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from examples import stock
from examples.models import Order, OrderStatus, Product

pytestmark = pytest.mark.django_db


def order(order_id="SF-1", *lines):
    lines = lines or (("SF-A", 2), ("SF-B", 1))
    return {
        "order_id": order_id,
        "customer_id": "ALDER",
        "total": "12.50",
        "currency": "EUR",
        "lines": [
            {"sku": sku, "quantity": quantity, "unit_price": "1.00", "discount": "0"}
            for sku, quantity in lines
        ],
    }


def on_hand(sku):
    return Product.objects.get(sku=sku).on_hand


def status(order_id="SF-1"):
    return Order.objects.get(order_id=order_id).status


def test_reserving_takes_goods_from_the_shelf_and_says_which():
    Product.objects.create(sku="SF-A", on_hand=5)
    run = "0198c0de-0000-7000-8000-000000000001"

    assert stock.reserve(order(), run) == {
        "order_id": "SF-1",
        "reserved": [{"sku": "SF-A", "quantity": 2}, {"sku": "SF-B", "quantity": 1}],
    }
    assert (on_hand("SF-A"), on_hand("SF-B")) == (3, stock.FIRST_STOCK - 1)
    placed = Order.objects.get(order_id="SF-1")
    assert (placed.status, placed.total, str(placed.run_id)) == ("reserved", Decimal("12.50"), run)


def test_reserving_again_changes_nothing():
    first = stock.reserve(order())

    assert stock.reserve(order()) == first
    assert on_hand("SF-A") == stock.FIRST_STOCK - 2


def test_lines_with_the_same_sku_are_added_up():
    stock.reserve(order("SF-1", ("SF-A", 2), ("SF-A", 3)))

    assert on_hand("SF-A") == stock.FIRST_STOCK - 5


def test_an_order_for_more_than_is_there_says_what_is_missing():
    Product.objects.create(sku="SF-A", on_hand=1)

    with pytest.raises(stock.OutOfStock) as caught, transaction.atomic():
        stock.reserve(order())
    assert (caught.value.sku, caught.value.wanted, caught.value.on_hand) == ("SF-A", 2, 1)
    assert on_hand("SF-A") == 1
    assert not Order.objects.exists()


def test_releasing_puts_back_once():
    stock.reserve(order())

    assert stock.release("SF-1")["released"] == [
        {"sku": "SF-A", "quantity": 2},
        {"sku": "SF-B", "quantity": 1},
    ]
    assert stock.release("SF-1")["released"] == []
    assert on_hand("SF-A") == stock.FIRST_STOCK


def test_an_order_moves_along_and_a_repeated_move_does_nothing():
    stock.reserve(order())
    for step in ("charged", "charged", "shipped"):
        stock.mark("SF-1", step)
    assert status() == OrderStatus.SHIPPED

    stock.mark("SF-1", "cancelled", "the customer sent it back")
    assert Order.objects.get(order_id="SF-1").reason == "the customer sent it back"


@pytest.mark.parametrize("wanted", ["shipped", "new"])
def test_an_order_cannot_jump_or_go_back(wanted):
    stock.reserve(order())

    with pytest.raises(stock.WrongMove):
        stock.mark("SF-1", wanted)
    assert status() == OrderStatus.RESERVED


def test_a_cancelled_order_is_not_reserved_again():
    stock.place(order())
    stock.mark("SF-1", "cancelled")

    with pytest.raises(stock.WrongMove):
        stock.reserve(order())


def test_a_placed_order_can_be_rejected_without_goods():
    stock.place(order())
    stock.mark("SF-1", "rejected", "out of stock")

    assert status() == OrderStatus.REJECTED


def test_unknown_orders_and_statuses_are_refused():
    with pytest.raises(stock.UnknownOrder):
        stock.mark("SF-404", "cancelled")
    with pytest.raises(ValueError, match="lost"):
        stock.mark("SF-404", "lost")


def test_the_database_refuses_a_negative_shelf():
    Product.objects.create(sku="SF-A", on_hand=1)

    with pytest.raises(IntegrityError), transaction.atomic():
        Product.objects.update(on_hand=-1)


def at_once(*calls):
    """Run each call in a transaction of a thread of its own, all let go together."""
    barrier = threading.Barrier(len(calls))
    outcomes: list[Any] = [None] * len(calls)

    def work(index, call):
        try:
            with transaction.atomic():
                barrier.wait(10)
                outcomes[index] = call()
        except Exception as error:
            outcomes[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return outcomes


@pytest.mark.django_db(transaction=True)
def test_ten_orders_at_once_for_the_last_five_pieces_leave_five_out_of_stock():
    Product.objects.create(sku="SF-A", on_hand=5)
    wishes = [order(f"SF-{number}", ("SF-A", 1)) for number in range(10)]
    outcomes = at_once(*[lambda wish=wish: stock.reserve(wish) for wish in wishes])

    assert sum(isinstance(outcome, stock.OutOfStock) for outcome in outcomes) == 5
    assert sum(isinstance(outcome, dict) for outcome in outcomes) == 5
    assert on_hand("SF-A") == 0


@pytest.mark.django_db(transaction=True)
def test_orders_for_the_same_goods_in_another_sequence_do_not_deadlock():
    forward = [("SF-A", 1), ("SF-B", 1), ("SF-C", 1)]
    wishes = [
        order(f"SF-{number}", *(forward if number % 2 else reversed(forward)))
        for number in range(8)
    ]
    outcomes = at_once(*[lambda wish=wish: stock.reserve(wish) for wish in wishes])

    assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
    assert on_hand("SF-B") == stock.FIRST_STOCK - 8


@pytest.mark.django_db(transaction=True)
def test_one_order_reserved_twice_at_once_takes_its_goods_once():
    outcomes = at_once(*[lambda: stock.reserve(order())] * 4)

    assert all(outcome == outcomes[0] and isinstance(outcome, dict) for outcome in outcomes)
    assert on_hand("SF-A") == stock.FIRST_STOCK - 2


@pytest.mark.django_db(transaction=True)
def test_one_order_released_twice_at_once_puts_its_goods_back_once():
    with transaction.atomic():
        stock.reserve(order())
    at_once(*[lambda: stock.release("SF-1")] * 4)

    assert on_hand("SF-A") == stock.FIRST_STOCK
