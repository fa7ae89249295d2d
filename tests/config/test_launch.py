import socket
import stat

import pytest

from config import launch, servers
from config.state import AlreadyRunning, State


def test_a_taken_port_is_named_and_another_one_used():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        notes: list[str] = []
        other = launch.free_port_from(port, "the web pages", notes)
    assert other != port
    assert notes == [f"Port {port} is taken; the web pages will use {other}."]


def test_a_port_taken_on_the_other_meaning_of_localhost_is_taken():
    try:
        taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with taken:
        port = taken.getsockname()[1]
        assert launch.free_port_from(port, "the web pages", []) != port


def test_a_free_port_needs_no_note():
    port = servers.free_port()
    notes: list[str] = []
    assert launch.free_port_from(port, "the web pages", notes) == port
    assert notes == []


def test_a_secret_is_made_once_and_read_by_its_owner_only(tmp_path):
    state = State(tmp_path)
    assert state.secret("key") == state.secret("key") != state.secret("other")
    assert stat.S_IMODE((tmp_path / "secrets" / "key").stat().st_mode) == 0o600


def test_one_folder_serves_one_process_at_a_time(tmp_path):
    state = State(tmp_path)
    with state.lock(), pytest.raises(AlreadyRunning, match="already runs in this folder"):
        state.lock()
    state.lock().close()
