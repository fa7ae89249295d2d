"""The scenarios' workflows: one outside action or three, tasks that leave notes, and gates.

Times are short: a call has TIMEOUT seconds, and SETTLE more in which it may still land.
"""

import os
import time
from pathlib import Path
from typing import Any

import durable
from durable import Call, Failure, Happened, NotFound, Retryable, StillUnknown
from examples import services
from tests.scenarios import crashing

TIMEOUT = 2.0
SETTLE = 1.0
LANDS_LATE = 2.5
"""Seconds after its start at which the late call of a scenario lands, long given up."""

JSON = dict[str, Any]


def notes() -> Path:
    """The folder of notes and gates: what happened in a process, told without the database."""
    return Path(os.environ.get("SCENARIO_NOTES", "/nonexistent"))


def note(name: str, text: str = "") -> None:
    """Leave one line; appends of one short line do not mix."""
    with (notes() / name).open("a") as file:
        file.write(f"{text or os.getpid()}\n")


def wait_for_gate(name: str, seconds: float = 30.0) -> None:
    """Wait, in user code, until the test opens the gate."""
    deadline = time.monotonic() + seconds
    while not (notes() / name).exists():
        if time.monotonic() > deadline:
            raise Failure(f"nobody opened {name}")
        time.sleep(0.02)


def _answer(call: Call, send: Any) -> JSON:
    """Send, and say in the engine's words what came back."""
    crashing.point("sending", call.key)
    try:
        answer: JSON = send()
    except services.RateLimited as error:
        raise Retryable(str(error), retry_after=error.retry_after) from error
    except services.NotSent as error:
        raise Retryable(str(error)) from error
    except services.Refused as error:
        raise Failure(str(error)) from error
    return answer


def _found(resource: JSON | None) -> Happened | type[NotFound]:
    return NotFound if resource is None else Happened(result=resource, resource=resource["id"])


def _charge(call: Call, order: str, amount: str) -> JSON:
    return _answer(
        call,
        lambda: services.payments.charge(
            order_id=order,
            customer_id="ACME",
            amount=amount,
            currency="USD",
            idempotency_key=call.key,
            fence=call.fence,
            run=str(call.run_id),
            timeout=call.timeout,
        ),
    )


def find_charge(call: Call) -> Happened | type[NotFound] | type[StillUnknown]:
    return _found(services.payments.find_charge(call.key, timeout=2))


def give_back(call: Call, result: JSON, amount: str) -> JSON:
    return _answer(
        call,
        lambda: services.payments.refund(
            charge_id=result["id"],
            amount=amount,
            currency="USD",
            idempotency_key=call.key,
            fence=call.fence,
            run=str(call.run_id),
            timeout=call.timeout,
        ),
    )


def find_refund(call: Call) -> Happened | type[NotFound] | type[StillUnknown]:
    return _found(services.payments.find_refund(call.key, timeout=2))


PAYING: dict[str, Any] = {
    "key": "{order}:pay",
    "target": "{order}",
    "amount": "{amount} USD",
    "title": "Pay {amount} USD for {order}",
    "timeout": TIMEOUT,
    "settle": SETTLE,
    "undo": "remedy",
    "compensate": give_back,
    "reconcile_undo": find_refund,
}


@durable.effect(name="scenario_pay", reconcile=find_charge, **PAYING)
def pay(call: Call, order: str, amount: str) -> JSON:
    return _charge(call, order, amount)


@durable.effect(
    name="scenario_pay_again", reconcile=find_charge, **{**PAYING, "key": "{order}:pay-again"}
)
def pay_again(call: Call, order: str, amount: str) -> JSON:
    """The same parameters, another action."""
    return _charge(call, f"{order}-again", amount)


@durable.effect(name="scenario_pay_blind", **PAYING)
def pay_blind(call: Call, order: str, amount: str) -> JSON:
    """A payment that the service cannot be asked about."""
    return _charge(call, order, amount)


@durable.effect(
    name="scenario_pay_late",
    reconcile=find_charge,
    **{**PAYING, "timeout": 1.0, "settle": LANDS_LATE},
)
def pay_late(call: Call, order: str, amount: str) -> JSON:
    """A payment that may land long after its call was given up."""
    return _charge(call, order, amount)


def _ship(call: Call, order: str) -> JSON:
    return _answer(
        call,
        lambda: services.carrier.ship(
            order_id=order,
            ship_to={"name": "ACME", "city": "Lund"},
            lines=[{"sku": "A", "quantity": 1}],
            idempotency_key=call.key,
            fence=call.fence,
            run=str(call.run_id),
            timeout=call.timeout,
        ),
    )


@durable.effect(
    name="scenario_ship",
    key="{order}:ship",
    title="Ship {order}",
    timeout=TIMEOUT,
    settle=SETTLE,
    reconcile=lambda call: _found(services.carrier.find_shipment(call.key, timeout=2)),
)
def ship(call: Call, order: str) -> JSON:
    return _ship(call, order)


@durable.effect(
    name="scenario_ship_slowly",
    key="{order}:ship",
    title="Ship {order}",
    timeout=30,
    settle=SETTLE,
    reconcile=lambda call: _found(services.carrier.find_shipment(call.key, timeout=2)),
)
def ship_slowly(call: Call, order: str) -> JSON:
    """A call that may take long: it lasts as long as the carrier wants."""
    return _ship(call, order)


@durable.effect(
    name="scenario_tell",
    key="{order}:tell",
    title="Tell the customer of {order}",
    timeout=TIMEOUT,
    settle=SETTLE,
    reconcile=lambda call: _found(services.mail.find(call.key, timeout=2)),
)
def tell(call: Call, order: str) -> JSON:
    return _answer(
        call,
        lambda: services.mail.send(
            to="acme@customers.example",
            subject=f"Your order {order}",
            body="It is on its way.",
            idempotency_key=call.key,
            fence=call.fence,
            run=str(call.run_id),
            timeout=call.timeout,
        ),
    )


@durable.task(name="scenario_step")
def step(order: str, number: int) -> int:
    """A cheap step that leaves a note each time it really runs."""
    note(f"{order}.step{number}")
    return number


@durable.task(name="scenario_work")
def work(order: str, seconds: float) -> float:
    """A long step."""
    note(f"{order}.work")
    time.sleep(seconds)
    return seconds


@durable.task(name="scenario_gate")
def gate(order: str) -> str:
    """A step that lasts until the test opens the gate."""
    note(f"{order}.at-gate")
    wait_for_gate(f"{order}.gate")
    return order


@durable.task(name="scenario_count_rows", atomic=True)
def count_rows(order: str) -> int:
    """A step that commits together with what it does in the database."""
    from durable.models import Run

    note(f"{order}.counted")
    return Run.objects.filter(start_key=order).count()


@durable.task(name="scenario_die", retry=durable.Retry(attempts=1))
def die(order: str) -> None:
    """A step that kills whoever does it, every time."""
    import signal

    note(f"{order}.died")
    os.kill(os.getpid(), signal.SIGKILL)


# The workflows ------------------------------------------------------------------------------


@durable.workflow(name="scenario_pays", version="1")
def pays(order: JSON) -> JSON:
    return pay(order["id"], order["amount"])


@durable.workflow(name="scenario_pays_blind", version="1")
def pays_blind(order: JSON) -> JSON:
    paid: JSON = pay_blind(order["id"], order["amount"])
    tell(order["id"])
    return paid


@durable.workflow(name="scenario_pays_late", version="1")
def pays_late(order: JSON) -> JSON:
    return pay_late(order["id"], order["amount"])


@durable.workflow(name="scenario_pays_twice", version="1")
def pays_twice(order: JSON) -> list[JSON]:
    """The same payment at two places: one key, so one payment."""
    return [pay(order["id"], order["amount"]), pay(order["id"], order["amount"])]


@durable.workflow(name="scenario_pays_and_pays_again", version="1")
def pays_and_pays_again(order: JSON) -> list[JSON]:
    """Two actions with identical parameters."""
    return [pay(order["id"], order["amount"]), pay_again(order["id"], order["amount"])]


@durable.workflow(name="scenario_pays_what_the_file_says", version="1")
def pays_what_the_file_says(order: JSON) -> JSON:
    """A body whose code changes between two entries, as after a deploy."""
    return pay(order["id"], (notes() / f"{order['id']}.amount").read_text())


@durable.workflow(name="scenario_three", version="1")
def three(order: JSON) -> JSON:
    """a, b, a short wait, c: each an outside action of its own."""
    name = order["id"]
    pay(name, "10.00")
    ship(name)
    durable.sleep(0.1)
    tell(name)
    return {"order": name}


@durable.workflow(name="scenario_ships", version="1")
def ships(order: JSON) -> JSON:
    return ship_slowly(order["id"])


@durable.workflow(name="scenario_sleeps", version="1")
def sleeps(order: JSON) -> str:
    durable.sleep(order["seconds"])
    tell(order["id"])
    return str(order["id"])


@durable.workflow(name="scenario_works", version="1")
def works(order: JSON) -> JSON:
    """A long step, then an outside action."""
    work(order["id"], order["seconds"])
    return ship(order["id"])


@durable.workflow(name="scenario_steps_to_gate", version="1")
def steps_to_gate(order: JSON) -> JSON:
    """Cheap steps, a gate, then an outside action."""
    for number in range(1, order["steps"] + 1):
        step(order["id"], number)
    gate(order["id"])
    return ship(order["id"])


@durable.workflow(name="scenario_steps_and_rows", version="1")
def steps_and_rows(order: JSON) -> JSON:
    """Cheap steps, a gate that no record tells of, then a step on another connection."""
    for number in range(1, order["steps"] + 1):
        step(order["id"], number)
    note(f"{order['id']}.at-gate")
    wait_for_gate(f"{order['id']}.gate")
    count_rows(order["id"])
    return ship(order["id"])


@durable.workflow(name="scenario_counts", version="1")
def counts(order: JSON) -> int:
    """Many cheap steps and an outside action."""
    for number in range(order["steps"]):
        step(order["id"], number)
    tell(order["id"])
    return int(order["steps"])


@durable.workflow(name="scenario_dies", version="1")
def dies(order: JSON) -> None:
    die(order["id"])
