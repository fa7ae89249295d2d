"""The README's first workflow, run as it stands there."""

import re
import sys
import types
from pathlib import Path

import pytest

from durable import engine
from durable.models import Run
from tests.engine_fixtures import alone, checked, engine_connections

__all__ = ["alone", "checked", "engine_connections"]
README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.usefixtures("checked")
def test_the_first_workflow_of_the_readme_runs_as_it_stands_there(monkeypatch):
    charged = []

    def charge(order_id, amount, idempotency_key):
        charged.append((order_id, amount, idempotency_key))
        return {"id": "ch_1"}

    payments = types.SimpleNamespace(
        price=lambda items: f"{sum(items)}.00", find=lambda key: None, charge=charge
    )
    monkeypatch.setitem(sys.modules, "myshop", types.SimpleNamespace(payments=payments))
    workflows, start = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

    exec(compile(workflows, "README.md", "exec"), {"__name__": "myshop.workflows"})  # noqa: S102
    exec(compile(start, "README.md", "exec"), {})  # noqa: S102
    run = Run.objects.get(start_key="A-1")
    engine.advance(run.id)

    run.refresh_from_db()
    assert (run.status, run.output) == ("succeeded", '{"charge":"ch_1","order":"A-1"}')
    assert charged == [("A-1", "7.00", "A-1:charge")]
