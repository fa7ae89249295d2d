"""The API of runs, questions and outside actions: strict at the door, and the same each time."""

from __future__ import annotations

import json
import socket
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable.models import Event, IdempotencyRecord, InboxItem, Interrupt, Lease, Run
from tests.approvals.miniature import at_once
from tests.clients import V1, anonymous, paths_of, problem_of, session_of, token_of
from tests.factories import make_events, make_interrupt, make_record, make_run
from tests.people import make_person

pytestmark = pytest.mark.django_db

ORDER = {"order_id": "A-1", "lines": [{"sku": "x", "count": 2}]}
START = {"workflow": "fulfil", "input": ORDER}
REASON = {"reason": "The customer has called it off."}
TABLES = (Run, Lease, Event, InboxItem, Interrupt, IdempotencyRecord)


@pytest.fixture
def oscar(db):
    return session_of(make_person("oscar", "operator"))


@pytest.fixture
def vera(db):
    return session_of(make_person("vera", "viewer"))


def rows():
    """Every row of the engine, to see that nothing has changed."""
    return [list(table._base_manager.order_by("pk").values()) for table in TABLES]


# Starting ----------------------------------------------------------------------------------------


def test_a_run_is_started_and_shown(oscar):
    sent = {
        **START,
        "goal": "Fulfil order A-1",
        "key": "order A-1",
        "thread_id": "acme",
        "priority": 5,
        "labels": {"region": "eu"},
    }
    answer = oscar.post("runs/", sent)
    assert answer.status_code == 201
    body = answer.json()
    assert {name: body[name] for name in sent} == sent
    assert (body["status"], body["started_by"], body["cancelling"]) == (
        "pending",
        "user:oscar",
        False,
    )
    assert answer["Location"] == f"{V1}runs/{body['id']}/"
    assert oscar.get(f"runs/{body['id']}/").json() == body


def test_a_token_starts_runs_in_its_owners_name(db):
    program = token_of(make_person("oscar", "operator"))
    assert program.post("runs/", START).json()["started_by"] == "token:oscar"


def test_the_same_key_again_is_the_same_run(oscar):
    """D06. Reordered keys are the same input."""
    first = oscar.post("runs/", START, Idempotency_Key="k1")
    turned = {"lines": [{"count": 2, "sku": "x"}], "order_id": "A-1"}
    again = oscar.post("runs/", {"input": turned, "workflow": "fulfil"}, Idempotency_Key="k1")
    in_the_body = oscar.post("runs/", {**START, "key": "k1"}, Idempotency_Key="k1")
    assert (first.status_code, again.status_code, in_the_body.status_code) == (201, 200, 200)
    assert first.json() == again.json() == in_the_body.json()
    assert Run.objects.count() == 1


def test_a_key_with_another_input_is_refused(oscar):
    """D06."""
    oscar.post("runs/", START, Idempotency_Key="k1")
    other = {"workflow": "fulfil", "input": {"order_id": "A-2"}}
    problem_of(oscar.post("runs/", other, Idempotency_Key="k1"), 422, "START_KEY_CONFLICT")
    assert Run.objects.count() == 1


def test_a_start_whose_answer_was_lost_is_found_again(oscar, monkeypatch, caplog):
    """D06: nothing stays "in progress" when the server dies between commit and answer."""

    def die(*args, **kwargs):
        raise RuntimeError("killed")

    with monkeypatch.context() as dying:
        dying.setattr("durable.api.queries.run", die)
        problem_of(oscar.post("runs/", START, Idempotency_Key="k1"), 500, "BROKEN")
    again = oscar.post("runs/", START, Idempotency_Key="k1")
    assert (again.status_code, again.json()["id"]) == (200, str(Run.objects.get().id))


def test_two_keys_that_differ_are_refused(oscar):
    answer = oscar.post("runs/", {**START, "key": "k2"}, Idempotency_Key="k1")
    assert paths_of(problem_of(answer, 400)) == ["key"]
    for bad in ("", "k" * 501, "käse"):
        answer = oscar.post("runs/", START, Idempotency_Key=bad)
        assert paths_of(problem_of(answer, 400)) == ["Idempotency-Key"]
    assert not Run.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_thirty_starts_at_once_make_one_run():
    """D06."""
    callers = [session_of(make_person(f"operator-{n}", "operator")) for n in range(30)]
    calls = [partial(caller.post, "runs/", START, Idempotency_Key="k") for caller in callers]
    answers = at_once(*calls)
    assert sorted(answer.status_code for answer in answers) == [200] * 29 + [201]
    assert {answer.json()["id"] for answer in answers} == {str(Run.objects.get().id)}


@pytest.fixture(params=["refuses", "is silent"])
def dead_broker(request, monkeypatch):
    """A broker that cannot be reached, in the two ways that networks have."""
    from config.celery import app
    from durable import tasks

    monkeypatch.setattr(tasks, "_silent_until", 0.0)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        port = server.getsockname()[1]
        if request.param == "refuses":
            server.close()
        monkeypatch.setattr(app.conf, "broker_url", f"redis://127.0.0.1:{port}/0")
        monkeypatch.setattr(app.conf, "broker_write_url", f"redis://127.0.0.1:{port}/0")
        # Connections that are open already belong to the broker that lives.
        monkeypatch.setattr(app, "_pool", None)
        monkeypatch.setattr(app.amqp, "_producer_pool", None)
        yield


@pytest.mark.django_db(transaction=True)
def test_a_dead_broker_neither_fails_nor_slows_a_start(dead_broker, caplog):
    """B08: the message is a hint, and the sweep finds the run."""
    oscar = session_of(make_person("oscar", "operator"))
    began = time.monotonic()
    answer = oscar.post("runs/", START)
    took = time.monotonic() - began
    assert answer.status_code == 201
    assert took < 2, took
    assert "was not sent" in caplog.text
    assert Run.objects.get().wake_at is not None


@pytest.mark.parametrize(
    "name",
    ["dead_line", "status", "epoch", "tenant", "actor", "started_by", "id", "generation", "queue"],
)
def test_an_unknown_field_is_refused_by_name(oscar, name):
    """S11: a client can neither misspell nor set what the server owns."""
    answer = oscar.post("runs/", {**START, name: "x", "zzz": 1})
    assert sorted(paths_of(problem_of(answer, 400, "INVALID_REQUEST"))) == sorted([name, "zzz"])
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"workflow": None}, "workflow"),
        ({"workflow": ""}, "workflow"),
        ({"workflow": 7}, "workflow"),
        ({"workflow": "no-such"}, "workflow"),
        ({"workflow": "x" * 100_000}, "workflow"),
        ({"version": "no-such"}, "workflow"),
        ({"goal": ["x"]}, "goal"),
        ({"goal": "x" * 501}, "goal"),
        ({"key": ""}, "key"),
        ({"key": 5}, "key"),
        ({"priority": "5"}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"priority": 10**9}, "priority"),
        ({"labels": []}, "labels"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"labels": {str(n): "x" for n in range(51)}}, "labels"),
        ({"thread_id": {}}, "thread_id"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(oscar, changed, path):
    answer = oscar.post("runs/", {**START, **changed})
    assert paths_of(problem_of(answer, 400)) == [path]
    assert not Run.objects.exists()


@pytest.mark.parametrize("missing", ["workflow", "input"])
def test_a_missing_field_is_named(oscar, missing):
    sent = {name: value for name, value in START.items() if name != missing}
    assert paths_of(problem_of(oscar.post("runs/", sent), 400)) == [missing]


@pytest.mark.parametrize(
    "broken",
    [
        "2027-01-01",
        "2027-01-01T00:00",
        "2027-01-01T00:00:00",
        "2027-01-01T24:00:00Z",
        "2027-13-01T00:00:00Z",
        "2027-02-30T00:00:00Z",
        "0000-00-00T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "10000-01-01T00:00:00Z",
        "2027-01-01T00:00:00+99:00",
        "٢٠٢٧-01-01T00:00:00Z",
        "",
        0,
        1e9,
        None,
        [],
    ],
)
def test_a_time_without_zone_or_sense_is_refused(oscar, broken):
    """S10."""
    answer = oscar.post("runs/", {**START, "run_at": broken})
    assert paths_of(problem_of(answer, 400)) == ["run_at"]
    assert not Run.objects.exists()


def test_a_time_is_stored_with_its_zone(oscar):
    """S10."""
    answer = oscar.post("runs/", {**START, "run_at": "2099-01-01T05:30:00+05:30"})
    assert answer.json()["wake_at"] == "2099-01-01T00:00:00Z"
    assert Run.objects.get().wake_at == datetime(2099, 1, 1, tzinfo=UTC)


# Bodies that are no bodies -----------------------------------------------------------------------

DEEP = 20_000
CORPUS = {
    "empty": (b"", ""),
    "blank": (b"   ", ""),
    "not JSON": (b"{workflow: fulfil}", ""),
    "cut off": (b'{"workflow": "fulfil", "input": {"a"', ""),
    "null": (b"null", ""),
    "array": (b"[]", ""),
    "text": (b'"x"', ""),
    "number": (b"1", ""),
    "invalid UTF-8": (b'{"workflow": "ful\xfffil", "input": 1}', ""),
    "UTF-16": ('{"workflow": "fulfil", "input": 1}'.encode("utf-16"), ""),
    "byte order mark": (b'\xef\xbb\xbf{"workflow": "fulfil", "input": 1}', ""),
    "NaN": (b'{"workflow": "fulfil", "input": {"a": [1, NaN]}}', "input.a[1]"),
    "Infinity": (b'{"workflow": "fulfil", "input": Infinity}', "input"),
    "-Infinity": (b'{"workflow": "fulfil", "input": [-Infinity]}', "input[0]"),
    "1e400": (b'{"workflow": "fulfil", "input": {"amount": 1e400}}', "input.amount"),
    "2^53": (b'{"workflow": "fulfil", "input": 9007199254740992}', "input"),
    "a very long number": (b'{"workflow": "fulfil", "input": ' + b"9" * 5000 + b"}", ""),
    "NUL": (b'{"workflow": "fulfil", "input": {"a": "x\\u0000y"}}', "input.a"),
    "NUL in a key": (b'{"workflow": "fulfil", "input": {"x\\u0000y": 1}}', "input key"),
    "NUL in the start key": (b'{"workflow": "fulfil", "input": 1, "key": "x\\u0000"}', "key"),
    "a lone surrogate": (b'{"workflow": "fulfil", "input": ["\\ud800"]}', "input[0]"),
    "a raw NUL": (b'{"workflow": "fulfil", "input": "\x00"}', ""),
    "a key twice": (b'{"workflow": "a", "input": 1, "input": 2}', ""),
    "a key twice, inside": (b'{"workflow": "a", "input": {"b": {"c": 1, "c": 2}}}', "input.b"),
    "brackets": (b"[" * DEEP + b"]" * DEEP, ""),
    "open brackets": (b'{"input":' + b"[" * DEEP, ""),
    "nested arrays": (b'{"input": ' + b"[" * DEEP + b"]" * DEEP + b"}", ""),
    "nested objects": (b'{"input": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", ""),
    "200 deep": (b'{"input": ' + b"[" * 200 + b"]" * 200 + b"}", "input" + "[0]" * 64),
}


@pytest.mark.parametrize("body", CORPUS.values(), ids=CORPUS)
def test_a_body_that_cannot_be_stored_is_refused_with_its_path(oscar, body):
    """S01, S02, S07, S09."""
    sent, path = body
    problem = problem_of(oscar.send("runs/", sent), 400)
    if sent:
        assert paths_of(problem)[0].startswith(path)
    assert not Run.objects.exists()


@pytest.mark.parametrize("body", CORPUS.values(), ids=CORPUS)
def test_no_address_breaks_on_such_a_body(oscar, body):
    run = make_run("blocked")
    before = rows()
    for address in (
        f"runs/{run.id}/cancel/",
        f"runs/{run.id}/resume/",
        f"runs/{run.id}/give-up/",
        f"interrupts/{make_id()}/answer/",
        f"effects/{make_id()}/resolve/",
    ):
        problem_of(oscar.send(address, body[0]), 400)
    assert rows() == before


def make_id():
    return uuid.uuid4()


def test_a_value_at_the_depth_that_is_allowed_is_stored(oscar):
    deep = json.loads("[" * 64 + "]" * 64)
    answer = oscar.post("runs/", {"workflow": "fulfil", "input": deep})
    assert answer.json()["input"] == deep


def test_escaped_backslashes_are_only_text(oscar):
    """S01."""
    answer = oscar.send("runs/", rb'{"workflow": "fulfil", "input": "a\\u0000b"}')
    assert answer.json()["input"] == r"a\u0000b"


@pytest.mark.parametrize("size", [1024 * 1024, 8 * 1024 * 1024])
def test_what_is_too_large_is_refused_as_that(oscar, size):
    problem_of(oscar.post("runs/", {**START, "input": "x" * size}), 413, "TOO_LARGE")
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a/b;c"]
)
def test_only_json_is_read(db, kind):
    """A form could be sent from any other site without asking the browser first."""
    program = token_of(make_person("oscar", "operator"))
    problem_of(program.send("runs/", json.dumps(START), kind), 415, "UNSUPPORTED_MEDIA_TYPE")
    assert not Run.objects.exists()


def test_a_body_in_chunks_is_not_taken_for_an_empty_one(oscar):
    """Its length is unknown, and what has no length would not be read."""
    record = make_record(make_run("blocked"))
    address = f"effects/{record.operation_id}/ask/"
    problem_of(oscar.post(address, Transfer_Encoding="chunked"), 411, "LENGTH_REQUIRED")
    assert not InboxItem.objects.exists()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["workflow", "input", "key", "goal", "run_at", "priority", "labels", "version", "value"]
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sent=st.dictionaries(FIELDS, VALUES) | VALUES | st.binary())
def test_no_body_ever_breaks_a_start(oscar, sent):
    body = sent if isinstance(sent, bytes) else json.dumps(sent)
    assert oscar.send("runs/", body).status_code in (201, 200, 400, 413, 422)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sent=st.dictionaries(
        st.sampled_from(["cursor", "limit", "status", "workflow", "run", "after", "x"]),
        st.text(st.characters(exclude_categories=["Cs"])) | st.integers().map(str),
    )
)
def test_no_parameter_ever_breaks_a_list(oscar, sent):
    run = make_run()
    for address in ("runs/", "interrupts/", f"runs/{run.id}/events/"):
        assert oscar.get(address, **sent).status_code in (200, 400)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=VALUES,
    fields=st.fixed_dictionaries(
        {"outcome": st.sampled_from(["happened", "not_happened"]) | VALUES, "reason": VALUES},
        optional={"resource_id": VALUES, "result": VALUES},
    ),
)
def test_no_answer_and_no_outcome_ever_breaks(oscar, value, fields):
    run = make_run("blocked")
    question, record = make_interrupt(run), make_record(run)
    sent = oscar.post(f"interrupts/{question.id}/answer/", {"value": value})
    assert sent.status_code in (200, 400, 413)
    sent = oscar.post(f"effects/{record.operation_id}/resolve/", fields)
    assert sent.status_code in (200, 400, 413)


# Lists -------------------------------------------------------------------------------------------


def walk(caller, address, **query):
    """Every row of a list, by following its pages."""
    answer = caller.get(address, **query)
    found = []
    while True:
        assert answer.status_code == 200, answer.content
        page = answer.json()
        found.append([row.get("id") for row in page["results"]])
        if page["next"] is None:
            return found
        answer = caller.client.get(page["next"])


def test_runs_are_listed_page_by_page_newest_first(vera):
    at = datetime(2026, 11, 29, 12, tzinfo=UTC)
    # Three of one moment: no page may lose or repeat one.
    made = [make_run(created_at=at - timedelta(seconds=n // 3)) for n in range(7)]
    newest_first = sorted(made, key=lambda run: (run.created_at, run.id), reverse=True)
    pages = walk(vera, "runs/", limit=2)
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert [id_ for page in pages for id_ in page] == [str(run.id) for run in newest_first]


def test_runs_are_listed_by_status_and_workflow(vera):
    blocked = make_run("blocked")
    make_run("running")
    other = make_run("blocked", workflow="refund")
    assert walk(vera, "runs/", status="blocked", workflow="fulfil") == [[str(blocked.id)]]
    assert walk(vera, "runs/", workflow="refund") == [[str(other.id)]]
    assert walk(vera, "runs/", workflow="nothing") == [[]]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "-1"},
        {"limit": "0"},
        {"limit": "201"},
        {"limit": "ten"},
        {"limit": "\u0665"},
        {"limit": "1_0"},
        {"limit": "9" * 40},
        {"limit": ""},
        {"status": "cancelling"},
        {"status": ""},
        {"workflow": "a\x00b"},
        {"cursor": ""},
        {"cursor": "x"},
        {"cursor": "2026-11-29T12:00:00+00:00_"},
        {"cursor": "2026-11-29_01932f2a-0000-7000-8000-000000000001"},
        {"cursor": "x" * 10_000},
        {"statsu": "blocked"},
        {"format": "json"},
        {"limit": ["1", "2"]},
    ],
)
def test_a_parameter_without_meaning_is_refused_by_name(vera, query):
    """S11."""
    assert paths_of(problem_of(vera.get("runs/", **query), 400)) == list(query)


def test_events_are_listed_in_their_order(vera):
    run = make_run()
    make_events(run, *["task.completed"] * 5)
    pages = walk(vera, f"runs/{run.id}/events/", limit=2)
    assert pages == [[f"evt_{run.id}_{n}" for n in page] for page in ([1, 2], [3, 4], [5])]
    later = vera.get(f"runs/{run.id}/events/", after=4).json()
    assert [event["seq"] for event in later["results"]] == [5]
    assert vera.get(f"runs/{run.id}/events/", after=10**17).json() == {"results": [], "next": None}


@pytest.mark.parametrize(
    ("address", "statements"),
    [
        ("runs/", 1),
        ("runs/{run}/", 1),
        ("runs/{run}/events/", 3),
        ("interrupts/", 1),
        ("effects/{effect}/", 1),
    ],
)
def test_what_is_read_costs_the_same_however_much_there_is(vera, address, statements):
    run = make_run()
    for _ in range(3):
        record = make_record(make_run())
        make_interrupt(run, task_key=str(record.operation_id))
        make_events(run, "task.completed")
    with connection.execute_wrapper(recorder := Recorder()):
        vera.get(address.format(run=run.id, effect=record.operation_id))
    assert len([sql for sql in recorder.seen if 'FROM "durable_' in sql]) == statements


@pytest.mark.parametrize("query", [{"limit": "501"}, {"limit": "0"}, {"after": "-1"}, {"seq": "1"}])
def test_a_page_of_events_has_its_limits(vera, query):
    run = make_run()
    assert paths_of(problem_of(vera.get(f"runs/{run.id}/events/", **query), 400)) == list(query)


def test_a_page_of_large_events_is_short(vera):
    run = make_run()
    large = {"payload": {"result": "x" * 1_000_000}}
    make_events(run, *[("task.completed", large)] * 6)
    assert [len(page) for page in walk(vera, f"runs/{run.id}/events/")] == [4, 2]


def test_questions_are_listed_by_run_and_status(vera):
    run = make_run()
    question = make_interrupt(run)
    make_interrupt(run, status="void", task_key="6")
    make_interrupt(make_run())
    assert walk(vera, "interrupts/", run=str(run.id), status="open") == [[str(question.id)]]
    assert len(walk(vera, "interrupts/", limit=1)) == 3
    for bad in ("x", "7", "urn:uuid:" + str(run.id), str(run.id).replace("-", "")):
        assert paths_of(problem_of(vera.get("interrupts/", run=bad), 400)) == ["run"]


# What an operator does ---------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_cancel_is_stored_and_shown_and_may_be_repeated(oscar):
    run = make_run("waiting")
    answer = oscar.post(f"runs/{run.id}/cancel/", REASON)
    assert (answer.status_code, answer.json()["cancelling"]) == (202, True)
    assert oscar.post(f"runs/{run.id}/cancel/", REASON).status_code == 202
    item = InboxItem.objects.earliest("id")
    assert (item.type, item.actor) == ("cancel.requested", "user:oscar")


@pytest.mark.parametrize("what", ["resume", "give-up"])
def test_a_blocked_run_is_resumed_or_given_up(oscar, what):
    run = make_run("blocked")
    assert oscar.post(f"runs/{run.id}/{what}/", REASON).status_code == 202
    assert InboxItem.objects.get().actor == "user:oscar"
    running = make_run("running")
    problem_of(oscar.post(f"runs/{running.id}/{what}/", REASON), 409, "NOT_BLOCKED")


@pytest.mark.parametrize("what", ["cancel", "resume", "give-up"])
def test_an_operation_needs_a_reason_and_a_living_run(oscar, what):
    run, ended = make_run("blocked"), make_run("succeeded")
    for bad in ({}, {"reason": ""}, {"reason": " "}, {"reason": 1}, {"reason": "x" * 2001}):
        assert paths_of(problem_of(oscar.post(f"runs/{run.id}/{what}/", bad), 400)) == ["reason"]
    problem_of(oscar.post(f"runs/{ended.id}/{what}/", REASON), 409, "RUN_ENDED")
    problem_of(oscar.post(f"runs/{make_id()}/{what}/", REASON), 404, "RUN_NOT_FOUND")
    assert not InboxItem.objects.exists()


def test_giving_up_waits_for_a_call_that_may_land(oscar):
    run = make_run("blocked")
    until = datetime.now(UTC) + timedelta(seconds=100)
    make_record(run, settle_until=until)
    answer = oscar.post(f"runs/{run.id}/give-up/", REASON)
    problem = problem_of(answer, 409, "TOO_EARLY")
    assert datetime.fromisoformat(problem["until"]) == until
    assert 95 <= int(answer["Retry-After"]) <= 100


# Answers -----------------------------------------------------------------------------------------

ODD_ANSWERS = [
    False,
    0,
    "",
    [],
    {},
    None,
    {"0123456789abcdef0123456789abcdef": 1},
    {"1": "x"},
    1.5,
    "é",
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("value", ODD_ANSWERS, ids=json.dumps)
def test_an_answer_reaches_the_workflow_as_it_was_sent(oscar, value):
    """S12."""
    from durable import interrupt, workflow
    from tests.scenario import begin, go

    @workflow(version="1")
    def asks(order):
        return [interrupt("Which?")]

    run = begin(asks, {})
    (question,) = oscar.get("interrupts/", run=str(run.id)).json()["results"]
    answer = oscar.post(f"interrupts/{question['id']}/answer/", {"value": value})
    assert answer.status_code == 200
    go(run)
    shown = oscar.get(f"runs/{run.id}/").json()
    assert shown["status"] == "succeeded"
    assert json.dumps(shown["output"]) == json.dumps([value])


def test_the_first_answer_stands(oscar):
    question = make_interrupt(make_run("waiting"))
    address = f"interrupts/{question.id}/answer/"
    first = oscar.post(address, {"value": False})
    assert first.json()["status"] == "answered"
    assert first.json()["answered_by"] == "user:oscar"
    # A lost reply: the same person, the same answer.
    assert oscar.post(address, {"value": False}).json() == first.json()
    other = token_of(make_person("olga", "operator"))
    for caller, value in ((oscar, 0), (oscar, None), (other, False)):
        problem = problem_of(caller.post(address, {"value": value}), 409, "INTERRUPT_CLOSED")
        assert problem["recorded"]["answer"] is False
        assert problem["recorded"]["answered_by"] == "user:oscar"
    assert InboxItem.objects.count() == 1


def test_no_answer_is_not_an_answer(oscar):
    """S11, S12."""
    question = make_interrupt(make_run("waiting"))
    address = f"interrupts/{question.id}/answer/"
    assert paths_of(problem_of(oscar.post(address, {}), 400)) == ["value"]
    assert paths_of(problem_of(oscar.post(address, {"valeu": 1}), 400)) == ["valeu"]
    problem_of(oscar.post(f"interrupts/{make_id()}/answer/", {"value": 1}), 404)
    question.refresh_from_db()
    assert question.status == "open"


def test_an_expired_question_takes_no_answer(oscar):
    past = datetime.now(UTC) - timedelta(seconds=1)
    question = make_interrupt(make_run("waiting"), expires_at=past)
    answer = oscar.post(f"interrupts/{question.id}/answer/", {"value": 1})
    assert problem_of(answer, 409)["recorded"]["status"] == "open"


# Outside actions ---------------------------------------------------------------------------------


def test_an_action_that_happened_is_resolved_once(oscar):
    record = make_record(make_run("blocked"))
    address = f"effects/{record.operation_id}/"
    shown = oscar.get(address).json()
    assert (shown["status"], shown["sent_request"]["amount"]) == ("unknown", "5210.00")
    said = {
        "outcome": "happened",
        "resource_id": "ch_1",
        "result": {"id": "ch_1"},
        "reason": "I saw it in the payment service.",
    }
    resolved = oscar.post(f"{address}resolve/", said)
    assert (resolved.status_code, resolved.json()["status"]) == (200, "succeeded")
    assert resolved.json()["external_resource_id"] == "ch_1"
    problem = problem_of(oscar.post(f"{address}resolve/", said), 409, "NOT_UNKNOWN")
    assert problem["recorded"]["status"] == "succeeded"
    problem_of(oscar.post(f"{address}ask/"), 409, "NOT_UNKNOWN")


def test_that_nothing_happened_is_believed_when_the_call_can_no_longer_land(oscar):
    until = datetime.now(UTC) + timedelta(seconds=60)
    fresh, old = make_record(make_run("blocked"), settle_until=until), make_record(make_run())
    said = {"outcome": "not_happened", "reason": "It is not there."}
    answer = oscar.post(f"effects/{fresh.operation_id}/resolve/", said)
    assert datetime.fromisoformat(problem_of(answer, 409, "TOO_EARLY")["until"]) == until
    assert 0 < int(answer["Retry-After"]) <= 60
    assert oscar.post(f"effects/{old.operation_id}/resolve/", said).json()["status"] == "failed"


@pytest.mark.parametrize(
    ("sent", "path"),
    [
        ({}, "outcome"),
        ({"outcome": "yes"}, "outcome"),
        ({"outcome": "happened "}, "outcome"),
        ({"outcome": True}, "outcome"),
        ({"outcome": ["happened"]}, "outcome"),
        ({"outcome": "happened"}, "resource_id"),
        ({"outcome": "happened", "resource_id": ""}, "resource_id"),
        ({"outcome": "happened", "resource_id": " "}, "resource_id"),
        ({"outcome": "not_happened", "resource_id": "x"}, "resource_id"),
        ({"outcome": "not_happened", "result": None}, "result"),
        ({"outcome": "happened", "resource_id": "x", "status": "failed"}, "status"),
    ],
)
def test_only_a_clear_outcome_is_recorded(oscar, sent, path):
    record = make_record(make_run("blocked"))
    answer = oscar.post(f"effects/{record.operation_id}/resolve/", {"reason": "I know.", **sent})
    assert paths_of(problem_of(answer, 400)) == [path]
    record.refresh_from_db()
    assert record.status == "unknown"


def test_the_outside_is_asked_again(oscar):
    record = make_record(make_run("blocked"))
    assert oscar.post(f"effects/{record.operation_id}/ask/").status_code == 202
    assert InboxItem.objects.get().type == "external.reconcile_requested"


# Who may -----------------------------------------------------------------------------------------


def everything(run, question, record):
    """Every address: how to call it, and the roles that may."""
    look, act = {"viewer", "approver", "operator"}, {"operator"}
    return [
        ("get", "runs/", look),
        ("get", f"runs/{run.id}/", look),
        ("get", f"runs/{run.id}/events/", look),
        ("get", "interrupts/", look),
        ("get", f"effects/{record.operation_id}/", look),
        ("post", "runs/", act),
        ("post", f"runs/{run.id}/cancel/", act),
        ("post", f"runs/{run.id}/resume/", act),
        ("post", f"runs/{run.id}/give-up/", act),
        ("post", f"interrupts/{question.id}/answer/", act),
        ("post", f"effects/{record.operation_id}/resolve/", act),
        ("post", f"effects/{record.operation_id}/ask/", act),
    ]


@pytest.fixture
def addresses(db):
    run = make_run("blocked")
    return everything(run, make_interrupt(run), make_record(run))


def test_each_address_asks_for_its_right(addresses):
    """A12."""
    roles = ("viewer", "approver", "operator", "stranger")
    people = {role: make_person(role, role) for role in roles}
    for role, person in people.items():
        for caller in (session_of(person), token_of(person)):
            for method, address, allowed in addresses:
                if role in allowed and method == "post":
                    continue  # tested one by one
                before = rows()
                answer = getattr(caller, method)(address)
                if role in allowed:
                    assert answer.status_code == 200, (role, address)
                else:
                    problem_of(answer, 403, "PERMISSION_DENIED")
                assert rows() == before


def test_nobody_gets_anything_without_a_login(addresses):
    for method, address, _ in addresses:
        answer = getattr(anonymous(), method)(address)
        problem_of(answer, 401, "NOT_AUTHENTICATED")
        assert answer["WWW-Authenticate"] == "Token"


def test_another_tenants_rows_do_not_exist(oscar):
    """A12."""
    run = make_run("blocked", tenant="other")
    question, record = make_interrupt(run), make_record(run)
    mine = oscar.get(f"runs/{make_id()}/").json()
    bodies = {
        "answer/": {"value": 1},
        "resolve/": {"outcome": "happened", "resource_id": "x", **REASON},
        "ask/": {},
    }
    before = rows()
    for method, address, _ in everything(run, question, record):
        if str(run.id) in address or str(question.id) in address or "effects" in address:
            body = next((sent for end, sent in bodies.items() if address.endswith(end)), REASON)
            answer = oscar.post(address, body) if method == "post" else oscar.get(address)
            problem = problem_of(answer, 404)
            if "runs" in address:
                assert problem == mine
    assert oscar.get("runs/").json()["results"] == []
    assert oscar.get("interrupts/").json()["results"] == []
    assert oscar.get("interrupts/", run=str(run.id)).json()["results"] == []
    assert rows() == before


def test_a_key_of_another_tenant_is_free(oscar):
    """D06."""
    make_run(tenant="other", start_key="k1")
    assert oscar.post("runs/", START, Idempotency_Key="k1").status_code == 201


def test_looking_changes_nothing(oscar, addresses):
    before = rows()
    for method, address, _ in addresses:
        for verb in ("head", "options", "get", "put", "patch", "delete"):
            answer = getattr(oscar.client, verb)(V1 + address, headers=oscar.headers)
            looks = method == "get" or address == "runs/"
            looked = verb in ("get", "head") and looks
            assert answer.status_code == (200 if looked else 405), (verb, address)
    assert rows() == before


def test_a_session_without_its_csrf_token_changes_nothing(oscar, addresses):
    del oscar.headers["X-CSRFToken"]
    before = rows()
    for method, address, _ in addresses:
        if method == "post":
            problem_of(oscar.post(address, START), 403, "PERMISSION_DENIED")
    assert rows() == before


def test_an_answer_is_never_kept_by_a_cache(vera):
    assert vera.get("runs/")["Cache-Control"] == "no-store"


def test_what_is_shown_is_on_disk_first(vera):
    run = make_run()
    with connection.execute_wrapper(recorder := Recorder()):
        vera.get(f"runs/{run.id}/")
    reads = [at for at, sql in enumerate(recorder.seen) if "durable_run" in sql]
    hardened = [at for at, sql in enumerate(recorder.seen) if "flush_lsn" in sql]
    assert reads and max(hardened) > max(reads)


class Recorder:
    """Keeps each statement."""

    def __init__(self):
        self.seen = []

    def __call__(self, execute, sql, params, many, context):
        self.seen.append(sql)
        return execute(sql, params, many, context)


# What is stored and cannot be read ---------------------------------------------------------------


def test_a_damaged_value_is_shown_as_text(vera):
    run = make_run("succeeded", output="NaN", input='{"a": [')
    shown = vera.get(f"runs/{run.id}/").json()
    assert shown["output"] == {"unreadable": "NaN"}
    assert shown["input"] == {"unreadable": '{"a": ['}
