"""Connections that hang: no error, no answer."""

import pytest

from tests.processes import GONE, SWEEP, TTL, Workers, database_url, settle, wait_until
from tests.proxy import Proxy
from tests.scenarios.looking import lease, now, sends, start, types

pytestmark = [pytest.mark.crash, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def proxy():
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.mark.parametrize("hung", ["standfast heartbeat", "standfast"])
def test_a_worker_whose_connections_hang_stops_before_its_lease_is_over(
    ground, workers, sandbox, check, proxy, hung
):
    """P11: its own clock tells it, and another worker does the work once."""
    there = database_url("127.0.0.1", proxy.port)
    cut = Workers(ground, ("cut",), DATABASE_URL=there)
    with cut.at_work():
        with workers.held():
            run = start("works", "P-1", seconds=TTL + 1)
            wait_until(lambda: ground.noted("P-1.work"), 10, lambda: types(run))
            proxy.swallowing = hung
            first = lease(run)
        wait_until(lambda: lease(run).epoch > first.epoch, TTL + 6 * SWEEP, lambda: types(run))
        lost = f"lease of epoch {first.epoch} is lost"
        wait_until(lambda: lost in cut[0].log(), 15, cut[0].log)
        settle([run.id], 20)
        assert now(run).status == "succeeded"
        # One call, and not by the one whose connections hang.
        (sent,) = sends(sandbox, run)
        assert (sent["applied"], sent["fence"]) == (True, lease(run).epoch)
        assert sent["fence"] > first.epoch
    check(GONE)
