"""The sandbox's HTTP door: loopback only, HTTP/1.1 with keep-alive, standard library alone."""

import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from examples.sandbox import catalogue, pages, switches
from examples.sandbox.catalogue import Operation
from examples.sandbox.desk import Answer, Desk, Handled
from examples.sandbox.store import FILTERS, Received, Store
from examples.strict_json import Json, NotJson, canonical, loads

HOST = "127.0.0.1"
LONGEST_SILENCE = 300.0
LONGEST_BODY = 1_000_000
LARGEST_FENCE = 2**63 - 1
KEY = re.compile(r"[\x21-\x7e]{1,255}")
PAGE_SIZE = 1000
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class BadRequest(Exception):
    """The request cannot be understood; carries the answer that says why."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"code": code, "message": message})


class Sandbox:
    """A running sandbox. Use it as a context manager, or call `serve` to stay in it.

    `port` 0 takes a free one; `url` says which. `data` is the SQLite file, made if missing.
    """

    def __init__(self, data: Path, port: int = 0) -> None:
        self.store = Store(data)
        self.desk = Desk(self.store)
        try:
            self._server = _Server(self, port)
        except BaseException:
            self.store.close()
            raise
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def serve(self) -> None:
        """Serve until `close` is called from another thread or KeyboardInterrupt is raised."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop serving, let go of whoever waits, close the file."""
        self._server.shutdown()
        self._server.server_close()
        self.desk.close()
        self.store.close()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve, name="sandbox", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self.sandbox = sandbox
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left is no error worth a traceback; anything else is."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Sandbox"
    sys_version = ""
    timeout = 120
    wbufsize = 64 * 1024
    disable_nagle_algorithm = True

    @property
    def sandbox(self) -> Sandbox:
        return cast(_Server, self.server).sandbox

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the ledger is the log."""

    def do_GET(self) -> None:
        # A body that nobody reads would be taken for the next request.
        if self.headers["Content-Length"] or self.headers["Transfer-Encoding"]:
            self.close_connection = True
        self._route(b"")

    def do_POST(self) -> None:
        try:
            body = self._read_body()
        except BadRequest as problem:
            self.close_connection = True
            self._send(problem.answer)
            return
        self._route(body)

    def _route(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        query = parse_qsl(parts.query, keep_blank_values=True)
        try:
            self._check_origin()
            segments = tuple(parts.path.strip("/").split("/"))
            operation = catalogue.BY_PATH.get(segments) if len(segments) == 2 else None
            if operation is not None:
                self._serve_operation(operation, query, body)
            elif self.command == "POST":
                self._serve_command(segments, body)
            else:
                self._serve_reading(segments, query)
        except BadRequest as problem:
            self._send(problem.answer)

    # The services

    def _serve_operation(
        self, operation: Operation, query: list[tuple[str, str]], body: bytes
    ) -> None:
        desk = self.sandbox.desk
        over = desk.over
        try:
            received = self._received(operation, dict(query), body)
        except BadRequest as problem:
            handled = desk.refuse(self._as_it_came(operation, body), problem.answer)
        else:
            look = desk.look_up if self.command == "GET" else desk.request
            handled = look(received, operation)
        self._hand_out(handled, over)

    def _received(self, operation: Operation, query: Mapping[str, str], body: bytes) -> Received:
        key = query.get("key", "") if self.command == "GET" else self.headers["Idempotency-Key"]
        if not key:
            raise BadRequest("key_missing", "An idempotency key is required.")
        if KEY.fullmatch(key) is None:
            raise BadRequest("bad_key", "A key is 1 to 255 printable ASCII characters, no spaces.")
        run = self.headers["Run"] or ""
        fence = _fence(self.headers["Fence"])
        if fence is not None and not run:
            raise BadRequest("run_missing", "A fence means nothing without the header Run.")
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise BadRequest("bad_body", "The body is not UTF-8.") from None
        return Received(
            service=operation.service,
            method=self.command,
            operation=operation.name,
            key=key,
            run=_printable(run),
            fence=fence,
            body=text,
        )

    def _as_it_came(self, operation: Operation, body: bytes) -> Received:
        return Received(
            service=operation.service,
            method=self.command,
            operation=operation.name,
            key=_printable(self.headers["Idempotency-Key"] or ""),
            run=_printable(self.headers["Run"] or ""),
            body=body.decode(errors="replace"),
        )

    def _hand_out(self, handled: Handled, over: threading.Event) -> None:
        if handled.answer is None:
            self._keep_silent(over)
            return
        try:
            self._send(handled.answer)
        except OSError:
            if handled.number:
                self.sandbox.store.answered(handled.number, None, "")
            raise

    def _keep_silent(self, over: threading.Event) -> None:
        """Hold the connection open without a word, until the client leaves or it lasts too long."""
        self.close_connection = True
        self.connection.setblocking(False)
        end = time.monotonic() + LONGEST_SILENCE
        while time.monotonic() < end and not over.wait(0.2):
            try:
                has_left = self.connection.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                continue
            if has_left:
                return

    # Reading and switching

    def _serve_reading(self, segments: tuple[str, ...], query: list[tuple[str, str]]) -> None:
        store = self.sandbox.store
        match segments:
            case ("",):
                page = pages.home(store, dict(query))
                self._write(200, page.encode(), "text/html; charset=utf-8")
            case ("style.css",):
                self._write(200, pages.STYLE, "text/css; charset=utf-8")
            case ("icon.svg",):
                self._write(200, pages.ICON, "image/svg+xml")
            case ("ledger",):
                self._serve_ledger(query)
            case ("ledger", "summary"):
                self._send_json({"counts": store.counts(), "doubled": store.doubled()})
            case ("applied", name):
                self._send_json(store.applied(name))
            case ("switches",):
                self._send_json([switch.as_json() for switch in store.switches()])
            case _:
                raise BadRequest("no_such_page", "There is nothing here.", 404)

    def _serve_ledger(self, query: list[tuple[str, str]]) -> None:
        filters = {name: _filter(name, value) for name, value in query if name != "limit"}
        limit = _whole("limit", dict(query).get("limit", "100"), 1, PAGE_SIZE)
        entries = self.sandbox.store.ledger(filters, limit=limit)
        headers = {}
        if len(entries) == limit:
            more = {**dict(query), "after": str(entries[-1]["number"])}
            headers["Link"] = f'</ledger?{urlencode(more)}>; rel="next"'
        self._send_json(entries, headers)

    def _serve_command(self, segments: tuple[str, ...], body: bytes) -> None:
        is_form = self.headers.get_content_type() == "application/x-www-form-urlencoded"
        match segments:
            case ("reset",):
                self.sandbox.desk.reset()
            case ("switches",) if is_form:
                self._set_switch_by_form(body)
                return
            case ("switches",):
                self._set_switch(_json(body))
            case ("switches", number, "remove") if number.isascii() and number.isdigit():
                if not self.sandbox.store.remove_switch(int(number[:15])):
                    raise BadRequest("no_such_switch", "That switch is no longer set.", 404)
            case _:
                raise BadRequest("no_such_page", "There is nothing to post to here.", 404)
        if is_form:
            self._see("/")
        else:
            self._send_json([switch.as_json() for switch in self.sandbox.store.switches()])

    def _set_switch(self, wish: Json) -> None:
        try:
            self.sandbox.store.set_switch(switches.read(wish))
        except switches.BadSwitch as problem:
            raise BadRequest("bad_switch", str(problem)) from None

    def _set_switch_by_form(self, body: bytes) -> None:
        try:
            self._set_switch(pages.read_form(body))
        except BadRequest as problem:
            page = pages.home(self.sandbox.store, {}, problem=str(problem))
            self._write(400, page.encode(), "text/html; charset=utf-8")
        else:
            self._see("/")

    # HTTP

    def _see(self, path: str) -> None:
        self._write(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": path})

    def _check_origin(self) -> None:
        """Keep pages of other sites from reading or switching through a visitor's browser."""
        host = self.headers["Host"] or ""
        if host.rpartition(":")[0] not in (HOST, "localhost"):
            raise BadRequest("bad_host", "This sandbox is only for this machine.", 403)
        origin = self.headers["Origin"]
        if self.command == "POST" and origin not in (None, f"http://{host}"):
            raise BadRequest("bad_origin", "Forms of other sites are not accepted.", 403)

    def _read_body(self) -> bytes:
        if self.headers["Transfer-Encoding"] is not None:
            raise BadRequest("length_required", "Send a Content-Length.", 411)
        length = _whole("Content-Length", self.headers["Content-Length"] or "0", 0, 2**40)
        if length > LONGEST_BODY:
            raise BadRequest("too_large", f"A body has at most {LONGEST_BODY} bytes.", 413)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError("the client left before its body was complete")
        return body

    def _send(self, answer: Answer) -> None:
        self._write(
            answer.status, canonical(answer.body).encode(), "application/json", answer.headers
        )

    def _send_json(self, value: Json, headers: Mapping[str, str] | None = None) -> None:
        self._write(200, canonical(value).encode(), "application/json", headers)

    def _write(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**SECURITY, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _json(body: bytes) -> Json:
    try:
        return loads(body)
    except NotJson as problem:
        raise BadRequest("bad_body", str(problem)) from None


def _fence(value: str | None) -> int | None:
    return None if value is None else _whole("Fence", value, 0, LARGEST_FENCE)


def _whole(name: str, value: str, least: int, most: int) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        code = f"bad_{name.lower().replace('-', '_')}"
        raise BadRequest(code, f"{name} must be a whole number between {least} and {most}.")
    return int(text)


def _filter(name: str, value: str) -> str | int:
    if name not in FILTERS:
        allowed = ", ".join((*FILTERS, "limit"))
        raise BadRequest("bad_filter", f"{name} is not a filter; use {allowed}.")
    if name == "after":
        return _whole(name, value, 0, LARGEST_FENCE)
    if name == "applied":
        if value not in ("true", "false"):
            raise BadRequest("bad_filter", "applied is true or false.")
        return int(value == "true")
    return value


def _printable(text: str) -> str:
    return "".join(letter for letter in text[:255] if letter.isprintable())
