"""An engine in miniature: it runs the gate's statements as an executor does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, connections, transaction
from django.utils import timezone

from approvals import decisions
from approvals.gate import ApprovalGate
from approvals.models import Approval
from durable.canonical import JSON
from durable.gate import Action, Allowed, Ask
from durable.models import IdempotencyRecord, Run
from tests.factories import make_record, make_run
from tests.people import RIGHTS


def rows_of(statement):
    """Run a statement of the gate on this thread's connection; return its rows as mappings."""
    with connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.params)
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def value_of(sql, *params):
    """The single value of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]


def at_once(*calls):
    """Run the calls in threads that leave one barrier together; return results or errors."""
    barrier = threading.Barrier(len(calls))

    def wait_and_call(call):
        try:
            connection.ensure_connection()
            barrier.wait()
            return call()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(wait_and_call, calls))


def waits_for_a_lock(seconds=10):
    """Return once some session of this database waits for a lock."""
    end = threading.Event()
    for _ in range(int(seconds * 100)):
        if value_of("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            return
        end.wait(0.01)
    raise AssertionError("nobody waits for a lock")


def waits_until_locked(approval):
    """Return once somebody else holds the approval."""
    for _ in range(1000):
        with transaction.atomic():
            locked = Approval.objects.select_for_update(no_key=True, skip_locked=True)
            if not locked.filter(id=approval.id).exists():
                return
    raise AssertionError("nobody locked the approval")


@dataclass
class Engine:
    """One run and one charge of it, asked for as an executor asks."""

    run: Run
    record: IdempotencyRecord
    gate: ApprovalGate = field(default_factory=ApprovalGate)
    parameters: dict[str, JSON] = field(
        default_factory=lambda: {
            "order_id": "A-1001",
            "customer_id": "acme-gmbh",
            "amount": "5210.00",
            "currency": "USD",
        }
    )

    @property
    def action(self):
        return Action(
            tenant=self.run.tenant,
            run_id=self.run.id,
            workflow=self.run.workflow,
            effect="charge",
            operation=self.record.operation,
            operation_id=self.record.operation_id,
            key=self.record.key,
            generation=1,
            task_key=self.record.task_key,
            title="Charge 5210.00 USD to customer acme-gmbh",
            target="acme-gmbh",
            amount=f"{self.parameters['amount']} {self.parameters['currency']}",
            parameters=self.parameters,
            requested_by=self.run.started_by,
            undo="remedy",
        )

    def verdict(self, **changed):
        action = replace(self.action, **changed)
        statement = self.gate.lookup(action)
        return self.gate.judge(action, rows_of(statement))

    def ask(self, **changed):
        """Ask as the executor does when it parks; return the pending approval."""
        verdict = self.verdict(**changed)
        assert isinstance(verdict, Ask), verdict
        rows_of(verdict.statement)
        return Approval.objects.get(id=verdict.approval_id)

    def start(self):
        """Start the charge: run the statement of an Allowed in a transaction."""
        verdict = self.verdict()
        assert isinstance(verdict, Allowed), verdict
        self.reserve(verdict)

    def reserve(self, verdict):
        with transaction.atomic():
            rows_of(verdict.statement)

    def settle(self, outcome):
        rows_of(self.gate.settle(self.record.operation_id, outcome))

    def close(self):
        rows_of(self.gate.close(self.run.id))


def make_engine(**run_fields):
    """A new run with one prepared charge."""
    run = make_run(**run_fields)
    return Engine(run=run, record=make_record(run, "prepared"))


def make_person(name, role):
    """Somebody with the rights of a role and, which saves a second, no password."""
    person = get_user_model().objects.create_user(username=name)
    person.user_permissions.set(Permission.objects.filter(codename__in=RIGHTS[role]))
    return person


def set_clocks(approval, **fields):
    """Put an approval's times where a test needs them, past the triggers."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        Approval.objects.filter(id=approval.id).update(**fields)
        cursor.execute("SET LOCAL session_replication_role = origin")
    approval.refresh_from_db()
    return approval


def passed():
    """A moment that is over."""
    return timezone.now() - timedelta(seconds=1)


def say(approval, choice, *, by="alice", reason="because"):
    """Decide as a person whose page shows this approval."""
    person = get_user_model().objects.filter(username=by).first() or make_person(by, "approver")
    decision = decisions.decide(
        approval.id,
        person=person,
        choice=choice,
        reason=reason,
        version=approval.version,
        digest=approval.digest,
        surface="web",
    )
    approval.refresh_from_db()
    return decision
