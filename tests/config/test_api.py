"""Tokens, and the description of the API."""

import base64
import json
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.utils import timezone
from knox.models import AuthToken

from tests.clients import V1, anonymous, paths_of, problem_of, session_of, token_of
from tests.people import make_person

pytestmark = pytest.mark.django_db

PASSWORD = "correct horse battery"


@pytest.fixture
def vera(db, settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
    person = make_person("vera", "viewer")
    person.set_password(PASSWORD)
    person.save()
    return person


@pytest.fixture(autouse=True)
def no_guesses_yet():
    cache.clear()
    yield
    cache.clear()


def basic(name, password):
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def log_in(caller=None, name="vera", password=PASSWORD):
    sent = {"username": name, "password": password}
    return (caller or anonymous()).post("auth/login/", sent)


def runs_as(token):
    return anonymous().client.get(V1 + "runs/", headers={"Authorization": f"Token {token}"})


def test_a_password_is_exchanged_for_a_token_that_expires(vera):
    for answer in (
        log_in(),
        anonymous().post("auth/login/", Authorization=basic("vera", PASSWORD)),
        anonymous().send("auth/login/", "", Authorization=basic("vera", PASSWORD)),
    ):
        assert answer.status_code == 201
        assert answer["Cache-Control"] == "no-store"
        assert runs_as(answer.json()["token"]).status_code == 200
    stored = AuthToken.objects.first()
    assert timedelta(hours=9) < stored.expiry - timezone.now() <= timedelta(hours=10)
    assert answer.json()["token"] not in str(AuthToken.objects.values())


def test_an_expired_token_is_none(vera):
    token = log_in().json()["token"]
    AuthToken.objects.update(expiry=timezone.now() - timedelta(seconds=1))
    problem_of(runs_as(token), 401, "AUTHENTICATION_FAILED")


def test_a_person_who_left_has_no_token(vera):
    token = log_in().json()["token"]
    vera.is_active = False
    vera.save()
    problem_of(runs_as(token), 401, "AUTHENTICATION_FAILED")
    problem_of(log_in(), 401, "AUTHENTICATION_FAILED")


def test_logging_out_ends_this_token_and_no_other(vera):
    program, other = token_of(vera), token_of(vera)
    assert program.post("auth/logout/").status_code == 204
    problem_of(program.get("runs/"), 401)
    assert other.get("runs/").status_code == 200
    problem_of(session_of(vera).post("auth/logout/"), 401)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("vera", "wrong"),
        ("nobody", PASSWORD),
        ("VERA", PASSWORD),
        ("vera ", PASSWORD),
        ("vera", PASSWORD + " "),
    ],
)
def test_a_wrong_login_says_only_that(vera, name, password):
    for answer in (
        log_in(None, name, password),
        anonymous().post("auth/login/", Authorization=basic(name, password)),
    ):
        problem = problem_of(answer, 401, "AUTHENTICATION_FAILED")
        assert problem["detail"] == "The name or the password is wrong."
        assert answer["WWW-Authenticate"].startswith("Basic")
    assert not AuthToken.objects.exists()


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"username": "vera"},
        {"username": "vera", "password": ""},
        {"username": 1, "password": PASSWORD},
        {"username": "vera\x00", "password": PASSWORD},
        {"username": "vera", "password": "\x00"},
        {"username": "x" * 151, "password": PASSWORD},
        {"username": "vera", "password": "x" * 5000},
        {"username": "vera", "password": PASSWORD, "expiry": "2099-01-01"},
        ["vera", PASSWORD],
    ],
)
def test_a_malformed_login_is_refused(vera, sent):
    problem_of(anonymous().send("auth/login/", json.dumps(sent)), 400)


@pytest.mark.parametrize(
    "header",
    [
        "Basic",
        "Basic x y",
        "Basic !!!",
        "Basic /w==",
        basic("ve\x00ra", PASSWORD),
        basic("vera", "\x00"),
        basic("vera", "x" * 5000),
        "Bearer x",
    ],
)
def test_a_malformed_header_is_no_login(vera, header):
    answer = anonymous().post("auth/login/", Authorization=header)
    assert answer.status_code in (400, 401)
    assert not AuthToken.objects.exists()


@pytest.mark.parametrize(
    "header", ["Token", "Token x y", "Token \xff", "Token a\x00b", "Token " + "a" * 5000, "Token é"]
)
def test_what_cannot_be_a_token_is_refused(vera, header):
    answer = anonymous().client.get(V1 + "runs/", headers={"Authorization": header})
    problem_of(answer, 401, "AUTHENTICATION_FAILED")


def test_guesses_are_counted_whatever_the_client_says_it_is(vera):
    answers = [
        anonymous().post(
            "auth/login/", Authorization=basic("vera", f"guess {n}"), X_Forwarded_For=f"10.0.0.{n}"
        )
        for n in range(21)
    ]
    assert {answer.status_code for answer in answers[:20]} == {401}
    problem_of(answers[20], 429, "THROTTLED")
    assert int(answers[20]["Retry-After"]) > 0
    problem_of(log_in(), 429, "THROTTLED")


def test_the_description_is_complete_and_valid(tmp_path):
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "api.yaml"))


def test_the_description_is_served_to_who_is_logged_in(vera):
    problem_of(anonymous().get("schema/"), 401)
    caller = session_of(vera)
    described = json.loads(caller.get("schema/").content)
    assert "/api/v1/approvals/{approval_id}/decide/" in described["paths"]
    for operations in described["paths"].values():
        for operation in operations.values():
            assert operation["operationId"]
            assert "application/problem+json" in operation["responses"]["default"]["content"]
    assert paths_of(problem_of(caller.get("schema/", version="1\n"), 400)) == ["version"]
