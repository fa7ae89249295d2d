"""What is written for supervisord; that it does its work is shown by acceptance/test_up.py."""

import configparser
import io
from pathlib import Path

import pytest

from config import processes, servers
from config.launch import Launch
from config.state import State

NEVER = 1_000_000


def programs(folder: Path, *, postgres: bool = True) -> configparser.RawConfigParser:
    state = State(folder)
    server = servers.Postgres(data=folder / "data", port=2, password="x", log=state.log("postgres"))
    (folder / "data").mkdir(parents=True)
    launch = Launch(
        state=state,
        lock=io.StringIO(),
        web_port=1,
        sandbox_port=3,
        supervisor_port=4,
        postgres=server if postgres else None,
        valkey=None,
    )
    parser = configparser.RawConfigParser()
    parser.read_string(processes.configuration(launch, sandbox=True))
    return parser


@pytest.fixture
def file(tmp_path: Path) -> configparser.RawConfigParser:
    return programs(tmp_path / "50% of it")


def test_no_program_is_ever_given_up(file):
    for section in file.sections():
        if section.startswith("program:"):
            assert file[section]["autorestart"] == "true"
            assert file[section].getint("startretries") >= NEVER


def test_pages_and_workers_wait_for_the_tables(file):
    waiting = [name for name in file.sections() if file[name].get("autostart") == "false"]
    assert waiting == ["program:web", "program:worker1", "program:worker2", "program:sandbox"]


def test_the_programs_stop_within_the_time_that_a_stop_may_take(file):
    groups = ("program:worker1", "program:web", "program:sandbox", "program:postgres")
    assert sum(file[name].getint("stopwaitsecs") for name in groups) <= processes.STOP_SECONDS


def test_a_percent_sign_in_a_path_is_not_expanded(file):
    assert "50%% of it" in file["program:postgres"]["command"]
    assert "50%% of it" in file["program:web"]["stdout_logfile"]


def test_a_given_database_is_not_ours_to_run(tmp_path):
    assert "program:postgres" not in programs(tmp_path / "state", postgres=False)
