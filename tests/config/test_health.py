import pytest


def test_healthz_answers_without_a_database(client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok\n")


@pytest.mark.django_db
def test_readyz_names_each_check(client):
    answer = client.get("/readyz")
    assert answer.status_code == 200, answer.json()
    assert [check["name"] for check in answer.json()["checks"]] == [
        "database",
        "migrations",
        "broker",
    ]
