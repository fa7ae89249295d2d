"""What people send arrives, whatever dies between their click and the worker."""

import re
from contextlib import suppress

import httpx
import pytest
from django.db import connection, transaction
from django.test import Client

from approvals.models import Approval, Decision
from durable import runs
from durable.models import InboxItem, Run
from tests.processes import AWAY, SWEEP, TTL, happened, settle, stays, wait_until
from tests.scenarios import crashing
from tests.scenarios.looking import applied, approve, lease, now, start, types

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]

# A run whose wake-up was lost goes on within this, once everything is there again.
GRACE = 3 * (TTL + SWEEP)


class Browser:
    """A person's browser at a real web server."""

    def __init__(self, web, person):
        logged_in = Client()
        logged_in.force_login(person)
        session = {"sessionid": logged_in.cookies["sessionid"].value}
        self.client = httpx.Client(base_url=web.url, cookies=session, trust_env=False, timeout=20)

    def get(self, address):
        answer = self.client.get(address, follow_redirects=True)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, address, **fields):
        """Send the form that the page holds, with its hidden fields, as a person fills it in."""
        hidden = dict(
            re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self.get(address))
        )
        answer = self.client.post(address, data={**hidden, **fields}, follow_redirects=True)
        assert answer.status_code < 500, answer.text
        return answer

    def close(self):
        self.client.close()


@pytest.fixture
def browser(web, alice, oscar):
    browser = Browser(web, alice)
    yield browser
    browser.close()


def test_an_approval_whose_web_server_died_and_whose_broker_is_gone_still_counts(
    workers, sandbox, check, valkey_server, browser
):
    """A09: no second click is needed, and one shows what was decided."""
    run = start("pays", "P-1", "6000.00")
    settle([run.id])
    page = f"/approvals/{Approval.objects.get().id}/"
    valkey_server.stop()
    try:
        died = crashing.plan(workers.ground.faults, "commit", str(run.id))
        with suppress(httpx.TransportError):
            browser.post(page, choice="approve")
        happened(died)
        decision = Decision.objects.get()
        assert (decision.choice, decision.actor) == ("approve", "user:alice")
        again = browser.post(page, choice="approve", version="1", digest=decision.digest)
        assert again.status_code in (200, 409)
        assert "approved" in again.text.lower()
        assert Decision.objects.get() == decision
        said = browser.get(f"/runs/{run.id}/")
        assert "The decision of alice is recorded; a worker has not taken it yet." in said
        assert now(run).status == "waiting"
        assert applied(sandbox, run) == []
    finally:
        valkey_server.start()
    # Celery tries to connect again every two, four, six ... seconds.
    settle([run.id], GRACE + 12)
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [True])
    check(AWAY)


def test_an_approval_given_while_no_worker_exists_is_taken_up_by_the_first_one(
    workers, sandbox, check, alice, oscar
):
    """A09: an hour later, too."""
    run = start("pays", "P-1", "6000.00")
    settle([run.id])
    workers.kill()
    approve(Approval.objects.get(), alice)
    assert now(run).status == "waiting"
    workers.ready()
    settle([run.id], GRACE)
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [True])
    check()


def test_a_run_whose_web_server_died_right_after_the_commit_exists_once_and_goes_on(
    workers, sandbox, check, web, oscar
):
    """B08, D06: the repeated request gets the same run."""
    from knox.models import AuthToken

    _, token = AuthToken.objects.create(user=oscar)
    died = crashing.plan(workers.ground.faults, "commit", "")
    headers = {"Authorization": f"Token {token}", "Idempotency-Key": "k-1"}
    body = {"workflow": "scenario_three", "input": {"id": "P-1"}}
    with httpx.Client(base_url=web.url, trust_env=False, timeout=20, headers=headers) as client:
        with pytest.raises(httpx.TransportError):
            client.post("/api/v1/runs/", json=body)
        happened(died)
        run = Run.objects.get()
        again = client.post("/api/v1/runs/", json=body)
    assert again.status_code in (200, 201), again.text
    assert str(run.id) in again.text
    settle([run.id], GRACE)
    assert (now(run).status, Run.objects.count()) == ("succeeded", 1)
    assert applied(sandbox, run) == [True, True, True]
    check()


def test_a_run_started_in_a_long_transaction_is_seen_when_that_commits(workers, sandbox, check):
    """B08: nobody looks for a row that is not there yet."""
    with transaction.atomic():
        run = start("three", "P-1")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(1)")
        assert applied(sandbox, run) == []
    settle([run.id])
    assert (now(run).status, lease(run).last_seq) == ("succeeded", len(types(run)))
    check()


def test_what_is_rolled_back_wakes_nobody_and_leaves_nothing(workers, sandbox, check):
    """B08: the whole transaction, or a savepoint in it."""

    class ChangedMyMind(Exception):
        pass

    with pytest.raises(ChangedMyMind), transaction.atomic():
        gone = start("three", "P-1")
        raise ChangedMyMind
    waiting = start("sleeps", "P-3", seconds=2)
    wait_until(lambda: now(waiting).status == "waiting", 10, lambda: types(waiting))
    with transaction.atomic():
        kept = start("three", "P-2")
        with suppress(ChangedMyMind), transaction.atomic():
            start("three", "P-1")
            runs.cancel(waiting.id, actor="user:oscar", reason="a mistake")
            raise ChangedMyMind
    settle([kept.id, waiting.id])
    assert {run.id for run in Run.objects.all()} == {kept.id, waiting.id}
    assert {now(run).status for run in (kept, waiting)} == {"succeeded"}
    assert not InboxItem.objects.exists()
    logs = "".join(worker.log() for worker in workers)
    assert str(gone.id) not in logs
    check()


def test_another_hook_that_raises_after_the_commit_costs_a_sweep_and_no_run(
    workers, sandbox, check
):
    """B08: Django stops at the first hook that raises."""

    def raises():
        raise RuntimeError("somebody else's hook")

    with pytest.raises(RuntimeError), transaction.atomic():
        transaction.on_commit(raises)
        run = start("three", "P-1")
    settle([run.id], GRACE)
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [True, True, True])
    check()


def test_sweepers_with_one_old_list_take_a_run_over_once(workers, sandbox, check):
    """L04: eight announcements of one expired lease, taken from a list read before."""
    killed = workers.crash_at("K1b", "P-1:ship")
    run = start("three", "P-1")
    happened(killed)
    workers.ground.pause_sweeps()
    dead = lease(run)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_sleep(greatest(0, extract(epoch FROM expires_at - clock_timestamp())) + 0.1)"
            " FROM durable_lease WHERE run_id = %s",
            [run.id],
        )
    from durable import inbox

    for _ in range(8):
        inbox.announce(run.id)
    wait_until(lambda: lease(run).epoch == dead.epoch + 1, 10, lambda: types(run))
    workers.ground.resume_sweeps()
    settle([run.id])
    assert types(run).count("lease.lost") == 1
    head = lease(run)
    for _ in range(8):  # the list is older still: the run has ended
        inbox.announce(run.id)
    stays(lambda: lease(run).last_seq == head.last_seq, 0.5, lambda: types(run))
    assert (now(run).status, applied(sandbox, run)) == ("succeeded", [True, True, True])
    check()
