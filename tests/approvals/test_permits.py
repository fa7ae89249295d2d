"""What the database itself refuses: the functions and triggers of migration 0002."""

import itertools
import uuid

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from approvals.models import Approval, Decision, Permit
from approvals.statuses import APPROVAL_MOVES, PERMIT_MOVES, ApprovalStatus, PermitStatus
from tests.approvals.miniature import (
    at_once,
    make_engine,
    passed,
    say,
    set_clocks,
    value_of,
    waits_for_a_lock,
    waits_until_locked,
)

pytestmark = pytest.mark.django_db

LOOK = "SELECT status FROM approvals_look_v1(%s, %s, %s)"
RESERVE = "SELECT approvals_reserve_v1(%s, %s, %s, %s, %s)"


def attempt(sql, *params):
    """Run one statement that may be refused; the transaction goes on."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0] if cursor.description else cursor.rowcount


@pytest.fixture
def approved(pending):
    say(pending, "approve")
    return pending


def reserve(approval, **changed):
    given = {
        "id": approval.id,
        "version": approval.version,
        "digest": approval.digest,
        "operation_id": approval.operation_id,
        "epoch": 3,
        **changed,
    }
    return attempt(RESERVE, *given.values())


def refusal_of(error):
    cause = error.value.__cause__
    return cause.sqlstate, cause.diag.message_detail


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"id": uuid.uuid4()}, "missing"),
        ({"id": None}, "missing"),
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"digest": "0" * 64}, "digest"),
        ({"digest": None}, "digest"),
        ({"operation_id": uuid.uuid4()}, "operation"),
        ({"operation_id": None}, "operation"),
    ],
)
def test_a_permit_is_for_exactly_this_approval_and_action(approved, changed, word):
    with pytest.raises(DatabaseError) as error:
        reserve(approved, **changed)
    assert refusal_of(error) == ("SF003", word)
    assert not Permit.objects.exists()


def test_what_is_not_approved_gives_no_permit(engine, pending):
    for status in set(ApprovalStatus) - {ApprovalStatus.APPROVED}:
        set_clocks(pending, status=status)
        with pytest.raises(DatabaseError) as error:
            reserve(pending)
        assert refusal_of(error) == ("SF003", "status")


def test_an_approval_whose_time_is_over_gives_no_permit(approved):
    set_clocks(approved, valid_until=passed())
    with pytest.raises(DatabaseError) as error:
        reserve(approved)
    assert refusal_of(error) == ("SF003", "late")


def test_a_permit_is_reserved_once(approved):
    assert reserve(approved) == 1
    with pytest.raises(DatabaseError) as error:
        reserve(approved, epoch=4)
    assert refusal_of(error) == ("SF003", "used")


def test_a_released_permit_is_for_a_newer_or_the_same_lease_only(approved):
    reserve(approved, epoch=3)
    attempt("SELECT approvals_settle_v1(%s, 'failed')", approved.operation_id)
    with pytest.raises(DatabaseError) as error:
        reserve(approved, epoch=2)
    assert refusal_of(error) == ("SF003", "used")
    reserve(approved, epoch=4)
    permit = Permit.objects.get()
    assert (permit.status, permit.epoch, permit.settled_at) == ("reserved", 4, None)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("succeeded", "consumed"), ("failed", "released"), ("unknown", "reserved")],
)
def test_an_outcome_settles_the_permit(approved, outcome, status):
    reserve(approved)
    settle = "SELECT approvals_settle_v1(%s, %s)"
    assert attempt(settle, approved.operation_id, outcome) == status
    assert Permit.objects.get().status == status
    assert attempt(settle, uuid.uuid4(), outcome) is None  # an action that needed no permit


def test_an_unknown_outcome_is_settled_later_either_way(approved):
    reserve(approved)
    settle = "SELECT approvals_settle_v1(%s, %s)"
    attempt(settle, approved.operation_id, "unknown")
    attempt(settle, approved.operation_id, "succeeded")
    assert attempt(settle, approved.operation_id, "succeeded") == "consumed"
    with pytest.raises(IntegrityError):
        attempt(settle, approved.operation_id, "failed")
    with pytest.raises(IntegrityError):
        attempt(settle, approved.operation_id, "perhaps")


def test_closing_a_run_counts_what_it_ended(engine, approved):
    other = make_engine().ask()
    close = "SELECT approvals_close_v1(%s)"
    assert attempt(close, engine.run.id) == 1
    assert attempt(close, engine.run.id) == 0
    other.refresh_from_db()
    assert other.status == "pending"


def test_closing_a_run_voids_an_approval_whose_permit_was_released(engine, approved):
    reserve(approved)
    attempt("SELECT approvals_settle_v1(%s, 'failed')", approved.operation_id)
    engine.close()
    approved.refresh_from_db()
    assert approved.status == "void"


def test_the_same_question_is_not_asked_twice(engine):
    verdicts = [engine.verdict(), engine.verdict()]
    attempt(verdicts[0].statement.sql, *verdicts[0].statement.params)
    with pytest.raises(DatabaseError) as error:
        attempt(verdicts[1].statement.sql, *verdicts[1].statement.params)
    assert refusal_of(error) == ("SF003", "pending")


def test_what_is_in_use_is_not_asked_again(engine, approved):
    engine.parameters["amount"] = "9999.00"
    verdict = engine.verdict()
    reserve(approved)
    with pytest.raises(DatabaseError) as error:
        attempt(verdict.statement.sql, *verdict.statement.params)
    assert refusal_of(error) == ("SF003", "used")


def test_a_question_that_nobody_could_answer_in_time_is_not_asked(engine):
    statement = engine.verdict().statement
    with pytest.raises(DatabaseError) as error:
        attempt(statement.sql, *statement.params[:-1], passed())
    assert refusal_of(error) == ("SF003", "late")


# Triggers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["approvals_decision", "approvals_refusal"])
@pytest.mark.parametrize("sql", ["UPDATE {} SET actor = 'x'", "DELETE FROM {}", "TRUNCATE {}"])
def test_what_was_said_is_never_rewritten(approved, table, sql):
    attempt("SET CONSTRAINTS ALL IMMEDIATE")  # TRUNCATE would refuse for another reason
    with pytest.raises(DatabaseError, match="is refused"):
        attempt(sql.format(table))
    assert Decision.objects.get().actor == "user:alice"


@pytest.mark.parametrize("table", ["approvals_approval", "approvals_permit"])
@pytest.mark.parametrize("sql", ["DELETE FROM {}", "TRUNCATE {} CASCADE"])
def test_what_was_asked_and_used_never_disappears(approved, table, sql):
    reserve(approved)
    attempt("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(DatabaseError, match="is refused"):
        attempt(sql.format(table))


def test_what_was_asked_never_changes(pending):
    free = {"status", "decided_at", "valid_until"}
    for field in Approval._meta.concrete_fields:
        if field.attname in free:
            continue
        other = {
            "UUIDField": uuid.uuid4(),
            "ForeignKey": uuid.uuid4(),
            "IntegerField": 7,
            "JSONField": {},
            "DateTimeField": passed(),
        }.get(field.get_internal_type(), "x")
        with pytest.raises(IntegrityError), transaction.atomic():
            Approval.objects.filter(id=pending.id).update(**{field.attname: other})


def test_an_approvals_status_moves_only_along_its_table(pending):
    """Each pair of statuses, tried on the database."""
    for old, new in itertools.product(ApprovalStatus, repeat=2):
        if old == new:
            continue
        set_clocks(pending, status=old, valid_until=pending.decide_by)
        # Nobody decided here, which `test_nothing_is_decided_without_a_decision` is about.
        decided = new in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED)
        allowed = new in APPROVAL_MOVES[old] and not decided
        assert moves(Approval, pending.id, new) is allowed, (old, new)


def test_a_permits_status_moves_only_along_its_table(approved):
    reserve(approved)
    for old, new in itertools.product(PermitStatus, repeat=2):
        if old == new:
            continue
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            Permit.objects.update(status=old)
            cursor.execute("SET LOCAL session_replication_role = origin")
        assert moves(Permit, approved.id, new) is (new in PERMIT_MOVES[old]), (old, new)


def moves(model, pk, status):
    try:
        with transaction.atomic():
            return model.objects.filter(pk=pk).update(status=status) == 1
    except IntegrityError:
        return False


@pytest.mark.parametrize("status", ["approved", "rejected"])
def test_nothing_is_decided_without_a_decision(pending, status):
    later = pending.decide_by
    with pytest.raises(IntegrityError), transaction.atomic():
        Approval.objects.filter(id=pending.id).update(
            status=status, decided_at=later, valid_until=later
        )


def test_a_request_begins_as_pending(pending):
    pending.refresh_from_db()
    values = {f.attname: getattr(pending, f.attname) for f in Approval._meta.concrete_fields}
    born = {"id": uuid.uuid4(), "operation_id": uuid.uuid4()}
    with pytest.raises(IntegrityError), transaction.atomic():
        Approval.objects.create(
            **values | born | {"status": "approved", "valid_until": pending.decide_by}
        )
    Approval.objects.create(**values | born)


@pytest.mark.parametrize("changed", [{"version": 2}, {"digest": "0" * 64}])
def test_a_decision_is_about_what_is_pending(pending, alice, changed):
    given = {
        "approval": pending,
        "version": pending.version,
        "person": alice,
        "actor": "user:alice",
        "choice": "approve",
        "digest": pending.digest,
        "surface": "web",
    }
    with pytest.raises(IntegrityError), transaction.atomic():
        Decision.objects.create(**given | changed)
    Approval.objects.update(status="void")
    with pytest.raises(IntegrityError), transaction.atomic():
        Decision.objects.create(**given)


def test_the_times_of_a_decision_never_change(approved):
    with pytest.raises(IntegrityError), transaction.atomic():
        Approval.objects.update(valid_until=approved.decide_by)


# Races -----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_of_ten_executors_that_use_one_approval_at_one_instant_one_starts(policy, oscar):
    """A14."""
    for _ in range(5):
        approval = make_engine().ask()
        say(approval, "approve")
        outcomes = at_once(*[lambda a=approval: reserve(a)] * 10)
        assert outcomes.count(1) == 1
        refused = [error.__cause__.sqlstate for error in outcomes if error != 1]
        assert refused == ["SF003"] * 9
        assert Permit.objects.filter(approval=approval).count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_approval_voided_while_the_start_waits_for_it_does_not_start(policy, oscar):
    """P02: the check is a later statement than the lock."""
    engine = make_engine()
    approval = engine.ask()
    say(approval, "approve")
    verdict = engine.verdict()

    def void_when_somebody_waits():
        with transaction.atomic():
            value_of("SELECT approvals_close_v1(%s)", engine.run.id)
            waits_for_a_lock()

    def start_when_it_is_void():
        waits_until_locked(approval)
        engine.reserve(verdict)

    _, outcome = at_once(void_when_somebody_waits, start_when_it_is_void)
    assert "the approval is void" in str(outcome)
    assert not Permit.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_expiring_and_starting_at_one_instant_never_do_both(policy, oscar):
    """P10: a look that ends a lapsed approval, against the start that uses it."""
    for _ in range(10):
        engine = make_engine()
        approval = engine.ask()
        say(approval, "approve")
        verdict = engine.verdict()
        action = engine.action
        set_clocks(approval, valid_until=passed())
        started, status = at_once(
            lambda e=engine, v=verdict: e.reserve(v),
            lambda a=action: value_of(LOOK, a.run_id, a.operation, a.key),
        )
        assert isinstance(started, DatabaseError)
        assert status == "expired"
