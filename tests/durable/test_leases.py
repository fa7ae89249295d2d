"""A fence as its executor knows it, and the thread that keeps it alive."""

import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest

from durable import claims, workflow
from durable.errors import LeaseLost
from durable.leases import Fence, Heartbeat, heartbeat
from durable.models import Lease
from tests.scenario import Elsewhere, execute, start, value_of

pytestmark = pytest.mark.usefixtures("alone")


@workflow(version="1")
def leases_flow(order):
    return None


@pytest.fixture
def fence(alone):
    """The fence of a run that this process holds."""
    claim = claims.claim(start(leases_flow).id)
    assert claim is not None
    return claim.fence


def seconds_left(fence):
    return value_of(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float FROM durable_lease"
        " WHERE run_id = %s",
        fence.run_id,
    )


def aged(fence, seconds):
    """The last confirmed renewal is that old by the monotonic clock."""
    fence._confirmed = time.monotonic() - seconds
    return fence


def test_a_fence_holds_for_the_ttl_less_the_margin(fence):
    fence.check()
    assert aged(fence, 0).deadline == pytest.approx(time.monotonic() + 2.0 - 0.4, abs=0.05)
    with pytest.raises(LeaseLost):
        aged(fence, 1.7).check()


def test_older_news_never_shortens_or_prolongs_a_lease(fence):
    aged(fence, 1)
    deadline = fence.deadline
    fence.confirm(sent=time.monotonic() - 5, cancel_requested=False)
    assert fence.deadline == deadline


def test_a_cancel_once_heard_of_is_never_forgotten(fence):
    fence.confirm(sent=time.monotonic(), cancel_requested=True)
    fence.confirm(sent=time.monotonic(), cancel_requested=False)
    assert fence.cancel_requested


def test_a_lost_fence_stays_lost_and_remembers_whether_somebody_took_it(fence):
    fence.lose(stolen=False)
    assert (fence.lost, fence.stolen) == (True, False)
    fence.lose(stolen=True)
    fence.lose(stolen=False)
    assert fence.stolen
    with pytest.raises(LeaseLost):
        fence.check()


def test_a_heartbeat_renews_by_the_databases_clock_and_says_what_is_done(fence):
    execute("UPDATE durable_lease SET expires_at = clock_timestamp() + interval '0.5 s'")
    aged(fence, 1.5).activity = "charging"
    heartbeat()._renew(fence)
    assert 1.5 < seconds_left(fence) <= 2.0
    assert lease_of(fence).activity == "charging"
    fence.check()


def lease_of(fence):
    return Lease.objects.get(run_id=fence.run_id)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE durable_lease SET owner = gen_random_uuid()",
        "UPDATE durable_lease SET epoch = epoch + 1",
        "UPDATE durable_lease SET expires_at = clock_timestamp()",
        "UPDATE durable_lease SET last_seq = last_seq - 1",  # it lost its tail (P01)
    ],
)
def test_a_heartbeat_that_meets_no_row_ends_its_executor(fence, sql):
    execute(sql)
    before = lease_of(fence).expires_at
    heartbeat()._renew(fence)
    assert fence.stolen
    assert lease_of(fence).expires_at == before


def test_a_heartbeat_brings_the_news_of_a_cancel(fence):
    execute("UPDATE durable_lease SET cancel_requested = true")
    heartbeat()._renew(fence)
    assert fence.cancel_requested


def test_a_heartbeat_whose_connection_hangs_is_given_up_and_the_fences_own_clock_decides(fence):
    """P11: no error, no answer; the executor stops by itself before the TTL."""
    beat = Heartbeat()
    with Elsewhere() as elsewhere:
        elsewhere.execute("SELECT 1 FROM durable_lease FOR NO KEY UPDATE")
        began = time.monotonic()
        beat._renew(fence)
        assert time.monotonic() - began < fence.ttl.total_seconds()
    assert (fence.lost, beat._link) == (False, None)
    with pytest.raises(LeaseLost):
        aged(fence, 1.7).check()


def test_a_heartbeat_whose_connection_was_cut_opens_another(fence):
    """B04: pg_terminate_backend on the renewal connection only."""
    beat = Heartbeat()
    beat._renew(fence)
    execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'standfast heartbeat'"
    )
    beat._renew(fence)
    assert not fence.lost
    aged(fence, 1)
    beat._renew(fence)
    assert fence.deadline > time.monotonic() + 1
    assert beat._link is not None
    beat._link.close()


def test_the_thread_renews_what_is_watched_and_nothing_else(fence):
    beat = heartbeat()
    with beat.watching(fence):
        aged(fence, 1)
        execute("UPDATE durable_lease SET expires_at = clock_timestamp() + interval '1 s'")
        end = time.monotonic() + 5
        while seconds_left(fence) < 1.5 and time.monotonic() < end:
            threading.Event().wait(0.05)
        assert seconds_left(fence) > 1.2
    assert fence not in beat._fences


def test_only_stale_fences_are_renewed():
    fence = Fence(
        run_id=uuid4(),
        owner=uuid4(),
        epoch=1,
        last_seq=1,
        phase="forward",
        cancel_requested=False,
        ttl=timedelta(seconds=9),
        margin=2.0,
        sent=time.monotonic(),
    )
    assert not aged(fence, 2.5).is_stale
    assert aged(fence, 3.5).is_stale


def test_an_executor_whose_lease_lapsed_cannot_renew_it_even_if_nobody_took_it(fence):
    execute("UPDATE durable_lease SET expires_at = clock_timestamp() - interval '1 s'")
    heartbeat()._renew(fence)
    assert fence.stolen
