"""The sandbox's promises over real HTTP, one behaviour at a time."""

import concurrent.futures
import http.client
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.sandbox_fixture import Sandbox, SandboxProcess

CHARGE = {"order_id": "2001", "customer_id": "Åse", "amount": "12.50", "currency": "EUR"}
KEY = "2001:charge"
RUN = "0198c0de-0000-7000-8000-000000000001"
HEADERS = {"Idempotency-Key": KEY, "Fence": "1", "Run": RUN}


def charge(sandbox, body=CHARGE, *, timeout=0.6, **headers):
    with httpx.Client(trust_env=False, timeout=timeout) as client:
        address = f"{sandbox.url}/payments/charges"
        return client.post(address, json=body, headers={**HEADERS, **headers})


def look_up(sandbox, key=KEY, timeout=0.6):
    with httpx.Client(trust_env=False, timeout=timeout) as client:
        return client.get(f"{sandbox.url}/payments/charges", params={"key": key})


def never_answered(sandbox, **headers):
    with pytest.raises(httpx.ReadTimeout):
        charge(sandbox, **headers)


def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# Keys


def test_a_request_without_an_idempotency_key_is_refused(sandbox: Sandbox) -> None:
    answer = httpx.post(f"{sandbox.url}/payments/charges", json=CHARGE, trust_env=False)

    assert (answer.status_code, answer.json()["code"]) == (400, "key_missing")
    assert sandbox.ledger()[0]["status"] == 400
    assert sandbox.applied("charge") == 0


def test_the_same_key_and_body_get_the_stored_answer_and_nothing_happens_twice(sandbox):
    first, second = charge(sandbox), charge(sandbox)

    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert first.json()["id"].startswith("ch_")
    assert [entry["applied"] for entry in sandbox.ledger()] == [True, False]
    assert [entry["deduplicated"] for entry in sandbox.ledger()] == [False, True]
    assert sandbox.applied("charge", "2001") == 1


def test_the_order_of_names_in_a_body_makes_no_other_body(sandbox):
    first = charge(sandbox)

    assert charge(sandbox, dict(reversed(CHARGE.items()))).json() == first.json()


def test_the_same_key_with_another_body_is_refused(sandbox):
    charge(sandbox)
    answer = charge(sandbox, {**CHARGE, "amount": "13.50"})

    assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
    assert sandbox.applied("charge", "2001") == 1


def test_a_key_belongs_to_one_operation_of_one_service(sandbox):
    charge(sandbox)
    refund = {"charge_id": "ch_1", "amount": "1.00", "currency": "EUR"}
    answer = httpx.post(
        f"{sandbox.url}/payments/refunds", json=refund, headers=HEADERS, trust_env=False
    )

    assert answer.status_code == 201
    assert answer.json()["id"].startswith("re_")


def test_twenty_requests_with_one_key_at_once_charge_once(sandbox):
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: charge(sandbox, timeout=10).json()["id"], range(20)))

    assert len(set(answers)) == 1
    assert sandbox.applied("charge", "2001") == 1


def test_two_keys_for_one_order_show_as_done_twice(sandbox):
    charge(sandbox)
    charge(sandbox, **{"Idempotency-Key": "other"})

    assert sandbox.applied("charge", "2001") == 2
    assert sandbox.summary()["doubled"] == [
        {"service": "payments", "operation": "charge", "business": "2001", "applied": 2}
    ]


def test_every_operation_has_its_own_kind_of_id(sandbox):
    bodies = {
        "payments/charges": ("ch_", CHARGE),
        "payments/refunds": ("re_", {"charge_id": "ch_1", "amount": "1.00", "currency": "EUR"}),
        "carrier/shipments": ("sh_", {"order_id": "1", "ship_to": {"city": "Ōtaki"}, "lines": [1]}),
        "carrier/cancellations": ("ca_", {"shipment_id": "sh_1"}),
        "mail/messages": ("ms_", {"to": "a@example.org", "subject": "Hi", "body": "There"}),
    }
    for path, (prefix, body) in bodies.items():
        answer = httpx.post(f"{sandbox.url}/{path}", json=body, headers=HEADERS, trust_env=False)
        assert answer.status_code == 201, answer.text
        assert answer.json()["id"].startswith(prefix)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"order_id": NaN}',
        b'{"order_id":"1","order_id":"2"}',
        b'{"order_id":"1","customer_id":"c","amount":12.5,"currency":"EUR"}',
        b'{"order_id":"1","customer_id":"c","amount":"-1","currency":"EUR"}',
        b'{"order_id":"1","customer_id":"c","amount":"1.00","currency":"EUR","tip":"1"}',
        b'{"order_id":"\\ud800","customer_id":"c","amount":"1.00","currency":"EUR"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_not_the_operations_is_refused_and_still_in_the_ledger(sandbox, body):
    answer = httpx.post(
        f"{sandbox.url}/payments/charges", content=body, headers=HEADERS, trust_env=False
    )

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_body")
    assert [entry["status"] for entry in sandbox.ledger()] == [400]


# Fences


def test_a_lower_fence_than_the_highest_seen_for_the_run_is_refused_by_every_service(sandbox):
    charge(sandbox, Fence="7")
    body = {"to": "a@example.org", "subject": "Hi", "body": "There"}
    answer = httpx.post(
        f"{sandbox.url}/mail/messages",
        json=body,
        headers={**HEADERS, "Fence": "6"},
        trust_env=False,
    )

    assert (answer.status_code, answer.json()["code"]) == (409, "stale_fence")
    assert sandbox.applied("message") == 0


def test_a_stale_fence_does_not_even_get_the_stored_answer(sandbox):
    charge(sandbox, Fence="1")
    charge(sandbox, Fence="2")

    assert charge(sandbox, Fence="1").status_code == 409


def test_fences_of_other_runs_do_not_matter(sandbox):
    charge(sandbox, Fence="7")

    assert charge(sandbox, Fence="1", Run="another").status_code == 201


@pytest.mark.parametrize("fence", ["-1", "x", "1.5", "9223372036854775808", "٣".encode()])
def test_a_fence_that_is_no_number_is_refused(sandbox, fence):
    assert charge(sandbox, Fence=fence).status_code == 400
    assert sandbox.applied("charge") == 0


# Look-ups


def test_a_look_up_finds_what_was_done_with_its_request(sandbox):
    assert look_up(sandbox).json() == {"found": False}
    done = charge(sandbox).json()

    found = look_up(sandbox).json()
    assert found == {"found": True, "resource": done, "request": CHARGE}
    assert [entry["method"] for entry in sandbox.ledger()] == ["GET", "POST", "GET"]


def test_only_switches_for_look_ups_change_look_ups(sandbox):
    charge(sandbox)
    sandbox.switch("payments", "error-before")
    assert look_up(sandbox).status_code == 200

    sandbox.switch("payments", "not-found", operation="lookup")
    assert look_up(sandbox).status_code == 404
    sandbox.switch("payments", "error", operation="lookup")
    assert look_up(sandbox).status_code == 500
    sandbox.switch("payments", "silence", operation="lookup")
    with pytest.raises(httpx.ReadTimeout):
        look_up(sandbox)
    sandbox.switch("payments", "ok", operation="lookup")
    assert look_up(sandbox).status_code == 200


# Behaviours


def test_apply_then_silence_does_it_and_never_answers(sandbox):
    sandbox.switch("payments", "apply-then-silence")
    never_answered(sandbox)

    assert sandbox.applied("charge", "2001") == 1
    [entry] = sandbox.ledger()
    assert (entry["status"], entry["behaviour"]) == ("never answered", "apply-then-silence")


def test_silence_does_nothing_and_never_answers(sandbox):
    sandbox.switch("payments", "silence")
    never_answered(sandbox)

    assert sandbox.applied("charge") == 0
    assert sandbox.ledger()[0]["status"] == "never answered"


@pytest.mark.parametrize("wait", ["43", "nan", "-5", "1e400", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_rate_limit_hands_out_retry_after_as_it_was_given(sandbox, wait):
    sandbox.switch("payments", "rate-limit", retry_after=wait)
    answer = charge(sandbox)

    assert (answer.status_code, answer.headers["Retry-After"]) == (429, wait)
    assert sandbox.applied("charge") == 0


def test_error_before_does_nothing(sandbox):
    sandbox.switch("payments", "error-before")

    assert charge(sandbox).status_code == 500
    assert sandbox.applied("charge") == 0


def test_error_after_has_done_it(sandbox):
    sandbox.switch("payments", "error-after")

    assert charge(sandbox).status_code == 500
    assert sandbox.applied("charge", "2001") == 1


def test_slow_waits_then_does_it_even_if_the_client_has_left(sandbox):
    sandbox.switch("payments", "slow", seconds=0.3)
    start = time.monotonic()
    assert charge(sandbox, timeout=5).status_code == 201
    assert time.monotonic() - start >= 0.3

    sandbox.switch("payments", "slow", seconds=0.4)
    with pytest.raises(httpx.ReadTimeout):
        charge(sandbox, {**CHARGE, "order_id": "2"}, timeout=0.1, **{"Idempotency-Key": "2"})
    assert sandbox.applied("charge", "2") == 0
    until(lambda: sandbox.applied("charge", "2") == 1)


def test_a_late_call_is_not_found_first_and_lands_afterwards(sandbox):
    sandbox.switch("payments", "late", seconds=0.6)
    with pytest.raises(httpx.ReadTimeout):
        charge(sandbox, timeout=0.1)

    assert look_up(sandbox).json() == {"found": False}
    until(lambda: sandbox.applied("charge", "2001") == 1)
    assert look_up(sandbox).json()["found"] is True
    assert sandbox.ledger(method="POST")[0]["status"] == "never answered"


def test_a_late_call_is_refused_when_a_newer_fence_was_seen_before_it_lands(sandbox):
    sandbox.switch("payments", "late", seconds=0.5, times=1)
    with pytest.raises(httpx.ReadTimeout):
        charge(sandbox, timeout=0.1, Fence="1")
    charge(sandbox, Fence="2", **{"Idempotency-Key": "newer"})
    until(lambda: sandbox.ledger(key=KEY)[0]["business"] == "2001")

    assert sandbox.applied("charge", "2001") == 1
    assert sandbox.ledger(applied=True)[0]["key"] == "newer"


def test_decline_takes_nothing_and_says_why(sandbox):
    sandbox.switch("payments", "decline")
    answer = charge(sandbox)

    assert answer.status_code == 402
    assert answer.json()["decline_code"] == "insufficient_funds"
    assert answer.json()["amount"] == "12.50"
    assert sandbox.applied("charge") == 0


# Switches


def test_a_switch_for_the_next_two_requests_ends_by_itself(sandbox):
    sandbox.switch("payments", "error-before", times=2)

    assert [charge(sandbox).status_code for _ in range(3)] == [500, 500, 201]


def test_the_narrowest_switch_speaks(sandbox):
    sandbox.switch("payments", "error-before")
    sandbox.switch("payments", "decline", operation="charge")
    sandbox.switch("payments", "ok", match="2001:")

    assert charge(sandbox).status_code == 201
    assert charge(sandbox, **{"Idempotency-Key": "2002:charge"}).status_code == 402


def test_a_switch_leaves_other_services_alone(sandbox):
    sandbox.switch("mail", "error-before")

    assert charge(sandbox).status_code == 201


@pytest.mark.parametrize(
    "wish",
    [
        [],
        {"service": "bank", "behaviour": "ok"},
        {"service": "mail", "behaviour": "decline"},
        {"service": "mail", "behaviour": "slow"},
        {"service": "mail", "behaviour": "late", "seconds": -1},
        {"service": "mail", "behaviour": "late", "seconds": True},
        {"service": "mail", "behaviour": "not-found"},
        {"service": "mail", "behaviour": "slow", "operation": "lookup", "seconds": 1},
        {"service": "mail", "behaviour": "ok", "operation": "charge"},
        {"service": "mail", "behaviour": "ok", "times": 0},
        {"service": "mail", "behaviour": "rate-limit", "retry_after": "1\r\nX: 1"},
        {"service": "mail", "behaviour": "ok", "colour": "red"},
    ],
)
def test_a_switch_that_makes_no_sense_is_refused(sandbox, wish):
    answer = httpx.post(f"{sandbox.url}/switches", json=wish, trust_env=False)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_switch")


def test_a_reset_forgets_everything_and_lets_no_late_call_land(sandbox):
    charge(sandbox, Fence="9")
    sandbox.switch("payments", "late", seconds=0.4)
    with pytest.raises(httpx.ReadTimeout):
        charge(sandbox, timeout=0.1, Fence="9", **{"Idempotency-Key": "late"})
    sandbox.reset()
    time.sleep(0.5)

    assert sandbox.ledger() == []
    assert sandbox.applied("charge") == 0
    assert charge(sandbox, Fence="1").status_code == 201


# Ledger


def test_the_ledger_is_filtered_and_paged(sandbox):
    for number in range(5):
        charge(sandbox, **{"Idempotency-Key": f"k{number}", "Run": f"r{number % 2}"})
    address = f"{sandbox.url}/ledger"
    page = httpx.get(address, params={"run": "r0", "limit": 2}, trust_env=False)

    assert [entry["key"] for entry in page.json()] == ["k0", "k2"]
    more = httpx.get(f"{sandbox.url}{page.links['next']['url']}", trust_env=False)
    assert [entry["key"] for entry in more.json()] == ["k4"]
    assert [entry["key"] for entry in sandbox.ledger(key="k3")] == ["k3"]
    assert sandbox.ledger(service="mail") == []
    assert httpx.get(address, params={"colour": "red"}, trust_env=False).status_code == 400


def test_what_was_answered_survives_sigkill(tmp_path: Path) -> None:
    with SandboxProcess(tmp_path / "sandbox.sqlite") as process:
        sandbox = Sandbox(process.url)
        sandbox.switch("mail", "silence")
        first = charge(sandbox, Fence="5").json()
        process.kill()
        process.start()

        assert charge(sandbox, Fence="5").json() == first
        assert charge(sandbox, Fence="4").status_code == 409
        assert sandbox.applied("charge", "2001") == 1
        assert len(sandbox.ledger()) == 3
        switches = httpx.get(f"{sandbox.url}/switches", trust_env=False).json()
        assert [switch["behaviour"] for switch in switches] == ["silence"]


def test_no_answered_charge_is_lost_when_the_process_is_killed_under_load(tmp_path: Path) -> None:
    answered: list[str] = []

    def go_on(worker):
        for number in range(10_000):
            key = f"{worker}-{number}"
            try:
                charge(sandbox, {**CHARGE, "order_id": key}, **{"Idempotency-Key": key})
            except httpx.HTTPError:
                return
            answered.append(key)

    with SandboxProcess(tmp_path / "sandbox.sqlite") as process:
        sandbox = Sandbox(process.url)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            workers = [pool.submit(go_on, worker) for worker in range(4)]
            until(lambda: len(answered) > 40, 20)
            process.kill()
            concurrent.futures.wait(workers)
        process.start()
        kept = {entry["key"] for entry in sandbox.ledger(applied=True)}

    assert set(answered) <= kept


# Pages and doors


def test_the_page_escapes_what_it_shows_and_allows_no_inline_anything(sandbox):
    nasty = "<script>alert(1)</script>"
    charge(sandbox, {**CHARGE, "customer_id": nasty}, Run="<b>run</b>")
    sandbox.switch("payments", "ok", match="<i>")
    page = httpx.get(sandbox.url, trust_env=False)

    assert page.status_code == 200
    assert nasty not in page.text
    assert "<b>run" not in page.text
    assert "<i>" not in page.text
    assert "&lt;script&gt;" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "style=" not in page.text
    assert "<style" not in page.text
    assert httpx.get(f"{sandbox.url}/style.css", trust_env=False).status_code == 200


def test_switches_are_turned_by_plain_forms(sandbox):
    form = {"service": "payments", "operation": "charge", "behaviour": "slow", "seconds": "0.5"}
    blanks = {"match": "", "retry_after": "", "times": "3"}
    answer = httpx.post(f"{sandbox.url}/switches", data={**form, **blanks}, trust_env=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")

    [switch] = httpx.get(f"{sandbox.url}/switches", trust_env=False).json()
    assert (switch["behaviour"], switch["seconds"], switch["times"]) == ("slow", 0.5, 3)
    assert "Wait, then do it" in httpx.get(sandbox.url, trust_env=False).text

    address = f"{sandbox.url}/switches/{switch['number']}/remove"
    assert httpx.post(address, data={"x": "1"}, trust_env=False).status_code == 303
    assert httpx.get(f"{sandbox.url}/switches", trust_env=False).json() == []


def test_a_form_that_makes_no_sense_comes_back_with_the_reason(sandbox):
    form = {"service": "mail", "behaviour": "slow", "seconds": "soon"}
    answer = httpx.post(f"{sandbox.url}/switches", data=form, trust_env=False)

    assert answer.status_code == 400
    assert "seconds must be a number" in answer.text


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_pages_of_other_sites_cannot_turn_switches(sandbox, headers):
    form = {"service": "mail", "behaviour": "silence"}
    answer = httpx.post(f"{sandbox.url}/switches", data=form, headers=headers, trust_env=False)

    assert answer.status_code == 403
    assert httpx.get(f"{sandbox.url}/switches", trust_env=False).json() == []


def test_one_connection_serves_many_requests(sandbox):
    address = urlsplit(sandbox.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("GET", "/payments/charges?key=a")
    connection.getresponse().read()
    port = connection.sock.getsockname()
    connection.request("GET", "/payments/charges?key=b")
    connection.getresponse().read()

    assert connection.sock.getsockname() == port
    connection.close()
