"""What an active run's body calls into: the run, its fence, its history, and call paths."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

from django.db import connection, connections

from durable.control import Abandon, Block, CancelNow, ControlFlow, Replay, Suspend
from durable.errors import BlockCode, CancelRequestedError, LeaseLost, Misplaced, OutsideRun
from durable.gate import Statement
from durable.history import History, StoredEvent
from durable.journal import Fact, Journal, RowBusy
from durable.leases import Fence
from durable.models import Run
from durable.registry import WorkflowDefinition
from durable.statuses import EventType, Phase

logger = logging.getLogger(__name__)

MAX_BRANCHES = 16

_scope: ContextVar[Scope | None] = ContextVar("durable_scope", default=None)
_inside: ContextVar[str] = ContextVar("durable_inside", default="")


class Context:
    """One execution of one run's body, from claim until it ends, waits or loses its lease."""

    def __init__(
        self,
        *,
        run: Run,
        workflow: WorkflowDefinition,
        fence: Fence,
        journal: Journal,
        history: History,
    ) -> None:
        self.run = run
        self.workflow = workflow
        self.fence = fence
        self.journal = journal
        self.history = history
        self.used: set[str] = set()
        self.waits: list[Suspend] = []
        self.stopped: ControlFlow | None = None
        self.fatal: BaseException | None = None  # what ends this process, whoever caught it
        self.is_over = False
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(MAX_BRANCHES)
        self._branches: list[Future[Any]] = []

    # Stopping (invariant 13) ------------------------------------------------------------

    def stop(self, control: ControlFlow) -> NoReturn:
        """Close the whole context; every later engine call raises again."""
        with self._lock:
            # A lost lease outranks everything: nothing may be written after it.
            if self.stopped is None or isinstance(control, Abandon):
                self.stopped = control
        raise self.stopped

    def suspend(self, scope: Scope, control: Suspend) -> NoReturn:
        """Close one branch; its siblings may finish what they have begun."""
        scope.closed = control
        with self._lock:
            self.waits.append(control)
        raise control

    def check(self, scope: Scope) -> None:
        """Raise whatever closed this branch or the context, or a cancel or loss found since."""
        if self.stopped is not None:
            raise self.stopped
        if self.is_over:
            raise Abandon  # a thread that outlived its body acts for nobody
        if scope.closed is not None:
            raise scope.closed
        try:
            self.fence.check()
        except LeaseLost:
            self.stop(Abandon())
        if self.fence.cancel_requested and self.fence.phase == Phase.FORWARD:
            self.stop(CancelNow())

    @contextmanager
    def faultless(self) -> Iterator[None]:
        """Span the engine's own work on a call: a fault in it never reaches the body.

        The lease is given up; another claim reads what is stored and tries again, and one that
        makes no progress blocks the run in the end.
        """
        try:
            yield
        except Exception:
            logger.exception("a fault of the engine in run %s", self.run.id)
            self.fence.lose(stolen=False)
            self.stop(Abandon())
        except ControlFlow:
            raise
        except BaseException as error:
            # An exit in the middle of a call: nobody knows how far it came, and no
            # `except BaseException` of the body may go on as if it were known.
            self.fence.lose(stolen=False)
            with self._lock:
                self.stopped, self.fatal = Abandon(), self.fatal or error
            raise

    # Calls and their paths ----------------------------------------------------------------

    def replay(self, path: str, name: str, fingerprint: str) -> list[StoredEvent]:
        """The recorded events of the call at `path`, after checking that it is the same call."""
        with self._lock:
            self.used.add(path)
        events = self.history.of(path)
        for event in events:
            found = event.payload.get("name")
            if found is not None and (found, event.payload.get("input")) != (name, fingerprint):
                what = "another input" if found == name else f"{found!r}"
                self.stop(
                    Block(
                        BlockCode.NONDETERMINISM,
                        f"Call {path} is {name!r}, but the log has {what} there"
                        f" (event {event.seq}). The code or an unrecorded value has changed.",
                    )
                )
        return events

    def leftover(self) -> str:
        """The first recorded call that the body did not make this time; empty when none."""
        for path in self.history.calls:
            if path not in self.used and not path.startswith("undo:"):
                return path
        return ""

    # Writing: a lost lease or a cancel stops the context, everything else is the caller's -----

    def append(self, fact: Fact, *, sync: bool) -> None:
        """Append one event."""
        try:
            self.journal.append(self.fence, fact, sync=sync)
        except LeaseLost:
            self.stop(Abandon())
        except RowBusy:
            self.stop(Replay())

    def write(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Run the statements in one transaction that holds the lease; see Journal.write."""
        try:
            return self.journal.write(self.fence, *statements)
        except LeaseLost:
            self.stop(Abandon())
        except CancelRequestedError:
            self.stop(CancelNow())
        except RowBusy:
            self.stop(Replay())

    def call(self, function: str, params: Sequence[Any], *, events: int) -> None:
        """Call one function of the database that holds the lease; see Journal.call."""
        try:
            self.journal.call(self.fence, function, params, events=events)
        except LeaseLost:
            self.stop(Abandon())
        except CancelRequestedError:
            self.stop(CancelNow())
        except RowBusy:
            self.stop(Replay())

    def read(self, *statements: Statement) -> list[list[dict[str, Any]]]:
        """Run reads in one round trip."""
        try:
            return self.journal.read(*statements)
        except LeaseLost:
            self.stop(Abandon())

    def now(self) -> datetime:
        """The database's clock."""
        at: datetime = self.read(Statement(sql="SELECT clock_timestamp() AS at"))[0][0]["at"]
        return at

    def remember(self, fact: Fact) -> None:
        """Keep the history in memory in step with what this executor just wrote."""
        row = {
            "seq": self.fence.last_seq,
            "type": fact.type.value,
            "task_key": fact.task_key,
            "actor": fact.actor,
            "at": datetime.now(UTC),  # this claim only; the database's time is in the log
            "payload": fact.payload,
        }
        with self._lock:
            self.history.add([row])

    # Branches --------------------------------------------------------------------------------

    def branch(self, scope: Scope, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in a thread of its own, inside `scope`."""
        future: Future[Any] = Future()
        running = partial(copy_context().run, self._run_branch, scope, work, future)
        self._branches.append(future)
        threading.Thread(target=running, name=f"durable-branch-{scope.prefix}", daemon=True).start()
        return future

    def _run_branch(self, scope: Scope, work: Callable[[], Any], future: Future[Any]) -> None:
        token = _scope.set(scope)
        scope.thread = threading.current_thread()
        try:
            with self._slots:
                result = work()
        except BaseException as error:
            connections.close_all()
            future.set_exception(error)
        else:
            connections.close_all()  # this thread's own; user code may have opened them
            future.set_result(result)
        finally:
            _scope.reset(token)

    def wait_for(self, scope: Scope, future: Future[Any]) -> None:
        """Wait for a branch; a waiting branch lends its slot, or nested ones would starve."""
        if not scope.prefix:
            wait([future])
            return
        self._slots.release()
        try:
            wait([future])
        finally:
            self._slots.acquire()

    def come_to_rest(self) -> None:
        """Wait until every branch has finished or stopped: nobody may act after this context."""
        while self._branches:
            wait([self._branches.pop()])

    @contextmanager
    def active(self) -> Iterator[Scope]:
        """Make this the current context of the calling thread."""
        root = Scope(self, "")
        token = _scope.set(root)
        try:
            yield root
        finally:
            self.is_over = True
            _scope.reset(token)


class Scope:
    """One branch of a body. Calls are numbered within it, whatever the other branches do."""

    def __init__(self, context: Context, prefix: str) -> None:
        self.context = context
        self.prefix = prefix
        self.closed: ControlFlow | None = None
        self.thread = threading.current_thread()
        self._count = 0

    def next_path(self) -> str:
        self._count += 1
        return f"{self.prefix}{self._count}"


def current() -> Scope:
    """The scope of the calling branch, still open. Raises OutsideRun, Misplaced, or what closed it.

    This is the one door of every recorded call.
    """
    scope = _scope.get()
    if scope is None or scope.thread is not threading.current_thread():
        raise OutsideRun  # nobody knows where in the body another thread's call would stand
    if _inside.get():
        raise Misplaced(f"Recorded calls are not allowed inside the body of {_inside.get()}.")
    scope.context.check(scope)
    if connection.in_atomic_block:
        # The record would commit, or not, apart from what the caller's transaction does.
        raise Misplaced("Recorded calls are not allowed inside atomic(); use @task(atomic=True).")
    return scope


@contextmanager
def inside(what: str, fence: Fence) -> Iterator[None]:
    """Mark the body of a task or effect: recorded calls are refused in it."""
    token = _inside.set(what)
    fence.activity = what
    try:
        yield
    finally:
        fence.activity = ""
        _inside.reset(token)


def fact(type: EventType, path: str, payload: str) -> Fact:
    return Fact(type=type, task_key=path, payload=payload, node="main")
