"""The shop's orders while workers, broker and database are killed at random."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import psutil
import pytest
from django.db import DatabaseError, OperationalError, connection

from approvals.models import Approval
from durable import canonical, runs
from durable.models import Event, Run
from examples.models import Order, Product
from examples.stock import FIRST_STOCK
from tests.processes import AWAY, GONE, KILLED, TTL, empty_broker, restless, settle
from tests.scenarios.looking import approve, log, reject

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(300),
]

DATA = Path(__file__).resolve().parent.parent.parent / "examples" / "data" / "orders.jsonl"
ORDERS = 60
LARGE = Decimal(5000)
DECLINED = ("SF-2002", "SF-2003")
MISCOUNTED = "SF-2004"
# Seconds in which the shop has to come to rest once nobody shoots any more.
REST = 60


def orders():
    """The sample, then the same again under new numbers, the large ones first."""
    sample = [json.loads(line) for line in DATA.read_text().splitlines()]
    again = sorted(sample, key=lambda order: -Decimal(order["total"]))[: ORDERS - len(sample)]
    copies = [{**order, "order_id": f"SF-9{number:03}"} for number, order in enumerate(again)]
    everything = [*sample, *copies]
    for order in everything:
        if order["order_id"] == MISCOUNTED:
            order["total"] = "0.01"
    return {order["order_id"]: order for order in everything}


def is_large(order):
    return Decimal(order["total"]) > LARGE


def is_unwanted(approval):
    """Which of the large orders alice turns down: every second one."""
    return int(approval.key.split(":")[0].removeprefix("SF-")) % 2 == 1


class Fire:
    """Everything that goes wrong, in an order drawn by lot."""

    def __init__(self, workers, postgres, person):
        self.workers, self.postgres, self.person = workers, postgres, person
        self.seed = random.randrange(1_000_000)  # noqa: S311 - a game, not a secret
        self.random = random.Random(self.seed)  # noqa: S311
        self.done: Counter[str] = Counter()
        self.frozen: list[tuple[float, psutil.Process]] = []

    def __str__(self):
        return f"seed {self.seed}, {dict(self.done)}"

    def burn(self, place):
        """Fire all shots; `place(share)` brings in that share of the orders before each."""
        shots: list[Callable[[], None]] = [
            *[self.kill_a_pool_process] * 10,
            *[self.freeze_a_pool_process] * 3,
            *[self.kill_a_master] * 3,
            *[self.empty_the_broker] * 2,
            self.restart_fast,
            self.restart_immediately,
        ]
        self.random.shuffle(shots)
        for shot in shots:
            place(1 / len(shots))
            self.let_them_work(events=25, seconds=0.8)
            shot()
            self.done[shot.__name__] += 1
            self.decide()
        while self.frozen:
            self.thaw()
            self.decide()
            time.sleep(0.05)

    def let_them_work(self, events, seconds):
        """Give the workers time for some steps, but not for long if they have none to do."""
        deadline = time.monotonic() + seconds
        with suppress(DatabaseError):
            before = Event.objects.count()
            while Event.objects.count() < before + events and time.monotonic() < deadline:
                self.decide()
                self.thaw()
                time.sleep(0.05)

    def kill_a_pool_process(self):
        pool = self.workers.pool()
        if pool:
            with suppress(ProcessLookupError):
                self.workers.kill_one(self.random.choice(pool).pid)

    def freeze_a_pool_process(self):
        """Stop one in whatever it does, until long after its lease is over."""
        pool = self.workers.pool()
        if pool:
            with suppress(psutil.NoSuchProcess):
                process = self.random.choice(pool)
                process.suspend()
                self.frozen.append((time.monotonic() + 1.5 * TTL, process))

    def thaw(self):
        """Let those go on whose time has come."""
        for until, process in list(self.frozen):
            if time.monotonic() >= until:
                self.frozen.remove((until, process))
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def kill_a_master(self):
        worker = self.random.choice(self.workers.all)
        if worker.alive:
            with suppress(psutil.NoSuchProcess):
                worker.kill_master()
        worker.start()

    def empty_the_broker(self):
        empty_broker()

    def restart_fast(self):
        self.postgres.restart("fast")
        connection.close()

    def restart_immediately(self):
        self.postgres.restart("immediate")
        connection.close()

    def decide(self):
        """Alice looks into her inbox, as long as there is a database."""
        try:
            for approval in Approval.objects.filter(status="pending"):
                (reject if is_unwanted(approval) else approve)(approval, self.person)
        except OperationalError:
            connection.close()


class Books:
    """The orders, what became of them, and what should have."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.given = orders()
        self.waiting = list(self.given)
        self.started = {}

    def place(self, share):
        """Start some more of the orders; a start whose answer was lost is repeated."""
        for _ in range(1 + int(share * ORDERS)):
            if self.waiting:
                order_id = self.waiting.pop()
                run = runs.start(
                    "fulfil", self.given[order_id], actor="user:oscar", key=order_id
                ).run
                self.started[order_id] = run.id

    @property
    def runs(self):
        return list(self.started.values())

    def outside(self, order_id):
        """How often each thing was done for this order."""
        told = self.sandbox.ledger(method="POST", key=f"{order_id}:confirmation", applied=True)
        return (
            self.sandbox.applied("charge", order_id),
            self.sandbox.applied("shipment", order_id),
            len(told),
        )

    def inside(self, order_id):
        """The run's status, the status that it returned, and the order's."""
        run = Run.objects.get(id=self.started[order_id])
        returned = canonical.loads(run.output)["status"] if run.output else ""
        order = Order.objects.filter(order_id=order_id).first()
        return run.status, returned, order.status if order else ""

    def expected(self, order_id, rejected):
        if order_id == MISCOUNTED:
            return ("failed", "", ""), (0, 0, 0)
        if order_id in DECLINED or order_id in rejected:
            return ("succeeded", "cancelled", "cancelled"), (0, 0, 0)
        return ("succeeded", "shipped", "shipped"), (1, 1, 1)

    def story(self, order_id):
        """Everything that is known about one order, for whoever has to find out why."""
        run = Run.objects.get(id=self.started[order_id])
        lines = [f"{e.at} {e.epoch} {e.seq} {e.type} {e.task_key} {e.payload}" for e in log(run)]
        for entry in self.sandbox.ledger(run=str(run.id)):
            lines.append(str(entry))
        return "\n".join(lines)

    def sold(self):
        """What the shipped orders took from the shelf."""
        sold: Counter[str] = Counter()
        for order_id in self.started:
            if self.inside(order_id)[2] == "shipped":
                for line in self.given[order_id]["lines"]:
                    sold[line["sku"]] += line["quantity"]
        return sold


def test_sixty_orders_are_each_charged_shipped_and_told_once_whatever_dies(
    workers, sandbox, check, postgres_server, alice, oscar
):
    for service, operation in (("payments", "charge"), ("carrier", "shipment")):
        sandbox.switch(service, "slow", operation=operation, seconds=0.2)
    for order_id in DECLINED:
        sandbox.switch("payments", "decline", operation="charge", match=order_id)
    books = Books(sandbox)
    fire = Fire(workers, postgres_server, alice)
    fire.burn(books.place)
    assert len(books.started) == ORDERS
    workers.ready()
    deadline = time.monotonic() + REST
    while restless(books.runs) and time.monotonic() < deadline:
        fire.decide()
        time.sleep(0.05)
    settle(books.runs, 1)

    lost = Event.objects.filter(type="lease.lost").count()
    assert lost >= 5, f"hardly anybody was ever in the line of fire: {lost}, {fire}"
    decided = {each.key.split(":")[0]: each.status for each in Approval.objects.all()}
    large = {order_id for order_id, order in books.given.items() if is_large(order)}
    assert set(decided) == large, fire
    rejected = {order_id for order_id, status in decided.items() if status == "rejected"}
    assert 2 <= len(rejected) <= len(large) - 2, fire
    for order_id in books.started:
        found = books.inside(order_id), books.outside(order_id)
        assert found == books.expected(order_id, rejected), (
            f"{order_id} came to {found} under {fire}\n{books.story(order_id)}"
        )
    gone = {p.sku: FIRST_STOCK - p.on_hand for p in Product.objects.exclude(on_hand=FIRST_STOCK)}
    assert gone == dict(books.sold()), fire
    check(KILLED, AWAY, GONE)
