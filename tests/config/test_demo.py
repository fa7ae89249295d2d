import stat
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from config import demo
from config.state import State

pytestmark = pytest.mark.django_db

ADDRESS = "http://localhost:8000"


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def logins(state: State) -> dict[str, str]:
    """Name and password of each line below the address."""
    lines = state.logins.read_text().splitlines()[2:]
    return {name: password for name, password, _ in (line.split() for line in lines)}


def test_everybody_can_log_in_with_the_password_that_was_written_down(state, client):
    demo.invite(state, ADDRESS)
    assert set(logins(state)) == {"ana", "ben", "olga", "victor", "admin"}
    for name, password in logins(state).items():
        assert client.login(username=name, password=password), name


def test_the_logins_are_for_the_owners_eyes_and_begin_with_the_address(state):
    demo.invite(state, ADDRESS)
    assert stat.S_IMODE(state.logins.stat().st_mode) == 0o600
    assert state.logins.read_text().startswith(ADDRESS + "\n")


def test_an_approver_decides_an_operator_operates_a_viewer_only_looks(state):
    demo.invite(state, ADDRESS)
    decides, operates, looks = (
        {name for name in logins(state) if User.objects.get(username=name).has_perm(permission)}
        for permission in ("approvals.decide_approval", "durable.operate_run", "durable.view_run")
    )
    assert decides == {"ana", "ben", "admin"}
    assert operates == {"olga", "admin"}
    assert looks == {"ana", "ben", "olga", "victor", "admin"}


def test_a_second_start_leaves_a_changed_password_alone(state):
    demo.invite(state, ADDRESS)
    ana = User.objects.get(username="ana")
    ana.set_password("her own")
    ana.save()
    demo.invite(state, ADDRESS)
    assert User.objects.get(username="ana").check_password("her own")
