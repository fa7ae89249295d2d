"""How a key is met (invariant 6): every status, whoever holds it, as the database says."""

import pytest

from durable import claims, records, workflow
from durable.errors import CancelRequestedError
from durable.gate import Statement
from durable.journal import KeyTaken, RowChanged, journal
from durable.models import IdempotencyRecord, uuid7
from durable.statuses import RecordStatus
from tests.factories import make_record, make_run
from tests.scenario import execute, past_the_triggers, start, types, value_of

pytestmark = pytest.mark.usefixtures("alone")


@workflow(version="1")
def records_flow(order):
    return None


@pytest.fixture
def claimed(alone):
    """A run that this process holds."""
    claim = claims.claim(start(records_flow).id)
    assert claim is not None
    return claim


def opening(claim, *, operation_id, hash="h", path="1", key="k", generation=1):
    run = claim.run
    params = (operation_id, run.tenant, "pay", key, generation, hash, "{}", path, "forward")
    return Statement(sql=records.OPEN, params=(run.id, *params))


def met(claim, record, **changed):
    """What opening the key says: "own" or "free" when it may start, otherwise how it is taken."""
    try:
        journal().write(claim.fence, opening(claim, operation_id=record.operation_id, **changed))
    except KeyTaken as taken:
        assert taken.operation_id == str(record.operation_id)
        return taken.how
    return "may start"


def existing(holder, status, path="1", **fields):
    bound = {"request_hash": "h"} if status not in ("prepared", "void") else {}
    return make_record(holder, status, operation="pay", key="k", task_key=path, **bound, **fields)


OWN = {
    "prepared": "may start",
    "running": "running",
    "succeeded": "succeeded",
    "failed": "may start",
    "unknown": "unknown",
    "compensating": "compensating",
    "compensated": "compensated",
}
OWN_OTHER_PATH = {
    "prepared": "busy",
    "running": "busy",
    "succeeded": "succeeded",
    "failed": "may start",
    "unknown": "busy",
    "compensating": "busy",
    "compensated": "compensated",
}
LIVE = {**OWN_OTHER_PATH, "failed": "busy"}
ENDED = {
    "prepared": "may start",
    "running": "busy",
    "succeeded": "succeeded",
    "failed": "may start",
    "unknown": "busy",
    "compensating": "busy",
    "compensated": "compensated",
}


def test_the_tables_name_every_status_but_void():
    for table in (OWN, OWN_OTHER_PATH, LIVE, ENDED):
        assert set(table) == {status.value for status in RecordStatus} - {"void"}


@pytest.mark.parametrize(("status", "expected"), OWN.items())
def test_the_own_record_of_this_call(claimed, status, expected):
    assert met(claimed, existing(claimed.run, status)) == expected


@pytest.mark.parametrize(("status", "expected"), OWN_OTHER_PATH.items())
def test_the_own_record_of_another_call(claimed, status, expected):
    assert met(claimed, existing(claimed.run, status, path="2")) == expected


@pytest.mark.parametrize(("status", "expected"), LIVE.items())
def test_the_record_of_another_run_that_lives(claimed, status, expected):
    assert met(claimed, existing(make_run(), status)) == expected


@pytest.mark.parametrize(("status", "expected"), ENDED.items())
def test_the_record_of_another_run_that_ended(claimed, status, expected):
    record = existing(make_run("failed"), status)
    assert met(claimed, record) == expected
    if expected == "may start":
        record.refresh_from_db()
        assert record.run_id == claimed.run.id


@pytest.mark.parametrize("status", [s for s in OWN if s not in ("prepared",)])
@pytest.mark.parametrize("holder", ["own", "live", "ended"])
def test_another_request_is_refused_whoever_holds_the_key(claimed, status, holder):
    """The bound hash stays."""
    run = {"own": claimed.run, "live": make_run(), "ended": make_run("failed")}[holder]
    assert met(claimed, existing(run, status), hash="other") == "other_request"


def test_a_void_record_does_not_hold_its_key(claimed):
    """P05: rejected, corrected, started again."""
    existing(make_run(), "void")
    fresh = uuid7()
    journal().write(claimed.fence, opening(claimed, operation_id=fresh))
    assert IdempotencyRecord.objects.get(operation_id=fresh).status == "prepared"


def test_a_record_that_the_caller_does_not_know_is_shown_to_it_first(claimed):
    record = existing(claimed.run, "prepared")
    with pytest.raises(KeyTaken, match="own") as taken:
        journal().write(claimed.fence, opening(claimed, operation_id=uuid7()))
    assert taken.value.operation_id == str(record.operation_id)


@pytest.mark.parametrize("other", [{"key": "k2"}, {"generation": 2}])
def test_another_key_or_generation_is_another_action(claimed, other):
    existing(make_run(), "running")
    journal().write(claimed.fence, opening(claimed, operation_id=uuid7(), **other))
    assert IdempotencyRecord.objects.count() == 2


def test_nothing_opens_once_a_cancel_is_stored_moved_or_not(claimed):
    """Invariant 9."""
    execute(
        "INSERT INTO durable_inboxitem (run_id, type, task_key, actor, payload, received_at)"
        " VALUES (%s, 'cancel.requested', '', 'user:oscar', '{}', now())",
        claimed.run.id,
    )
    with pytest.raises(CancelRequestedError):
        journal().write(claimed.fence, opening(claimed, operation_id=uuid7()))
    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("status", ["prepared", "succeeded", "failed", "unknown", "void"])
def test_an_outcome_is_stored_only_for_what_runs(claimed, status):
    """P02: a record UPDATE that meets no row leaves no event beside it."""
    record = existing(claimed.run, status)
    epoch = claimed.fence.epoch
    past_the_triggers("UPDATE durable_idempotencyrecord SET epoch = %s", epoch)
    before = types(claimed.run)
    outcome = ("succeeded", "null", None, None, claimed.fence.ttl)
    told = ("external.completed", "main", "1", "{}")
    params = (claimed.run.id, record.operation_id, epoch, *outcome, *told)
    with pytest.raises(RowChanged):
        journal().write(claimed.fence, Statement(sql=records.SETTLE, params=params))
    assert types(claimed.run) == before
    assert value_of("SELECT status FROM durable_idempotencyrecord") == status


def test_an_outcome_is_stored_only_under_the_epoch_that_sent_it(claimed):
    """Invariant 5."""
    record = existing(claimed.run, "running", epoch=claimed.fence.epoch + 1)
    outcome = ("succeeded", "null", None, None, claimed.fence.ttl)
    told = ("external.completed", "main", "1", "{}")
    params = (claimed.run.id, record.operation_id, claimed.fence.epoch, *outcome, *told)
    with pytest.raises(RowChanged):
        journal().write(claimed.fence, Statement(sql=records.SETTLE, params=params))
    record.refresh_from_db()
    assert record.status == "running"


def test_parameters_are_those_that_were_sent_if_any_were():
    assert records.parameters({"sent_request": '{"a":1}', "proposed_request": '{"a":2}'}) == {
        "a": 1
    }
    assert records.parameters({"sent_request": None, "proposed_request": '{"a":2}'}) == {"a": 2}
