import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import kombu
import pytest

from config import celery_app, servers

ROOT = Path(__file__).resolve().parent.parent.parent


def manage(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, under exactly these variables."""
    bare = {name: os.environ[name] for name in ("PATH", "STANDFAST_STATE")}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**bare, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def production() -> dict[str, str]:
    return {
        "SECRET_KEY": secrets.token_hex(40),
        "DATABASE_URL": "postgresql://nowhere.example/standfast",
    }


def test_outside_of_debug_a_missing_secret_key_is_named():
    answer = manage("check", DATABASE_URL=production()["DATABASE_URL"])
    assert answer.returncode == 1
    assert "ImproperlyConfigured: Set the SECRET_KEY environment variable" in answer.stderr


def test_outside_of_debug_a_missing_database_is_named():
    answer = manage("check", SECRET_KEY=production()["SECRET_KEY"])
    assert answer.returncode == 1
    assert "ImproperlyConfigured: Set the DATABASE_URL environment variable" in answer.stderr


def test_production_settings_pass_the_deploy_check():
    answer = manage("check", "--deploy", "--fail-level", "WARNING", **production())
    assert answer.returncode == 0, answer.stderr


def test_the_deploy_check_notices_plain_http():
    answer = manage(
        "check", "--deploy", "--fail-level", "WARNING", INSECURE_HTTP="1", **production()
    )
    assert answer.returncode == 1
    assert "SECURE_SSL_REDIRECT" in answer.stderr


def test_every_page_forbids_scripts_and_styles_of_others(client):
    policy = client.get("/healthz").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def seconds_of_a_failed_hint(port: int) -> float:
    """How long publishing holds up its caller, under our settings, when that broker fails."""
    connection = kombu.Connection(
        f"redis://127.0.0.1:{port}/0",
        transport_options=celery_app.conf.broker_transport_options,
        connect_timeout=celery_app.conf.broker_connection_timeout,
    )
    begun = time.monotonic()
    with connection, pytest.raises(kombu.exceptions.OperationalError):
        celery_app.send_task("hint", connection=connection)
    return time.monotonic() - begun


def test_a_broker_that_hangs_holds_a_publisher_up_for_about_a_second():
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        assert seconds_of_a_failed_hint(hanging.getsockname()[1]) < 2


def test_a_broker_that_is_gone_is_noticed_at_once():
    assert seconds_of_a_failed_hint(servers.free_port()) < 1
