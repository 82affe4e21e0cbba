"""A running `sconce serve`, and requests to it.

All calls go over HTTP to a server that this process starts for itself. It has the options of each request, one connection for each
thread that asks, and a model that stays loaded; a vector has the bits of `sconce embed`. Rows come as Arrow streams, so that vectors are
neither printed nor parsed, and several requests of a large call are in flight, so that the server always has texts to encode: 100,000
texts take the time that the command takes, and no second mechanism is needed for them.

The server listens on a free port of the loopback interface, which every system has and which leaves no file behind; a random key keeps
other users out. It stops when its standard input ends: with this process, however that ends.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import selectors
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from ._command import SconceError, failure, start

_log = logging.getLogger("sconce_embed")
_WARNING = "sconce: warning: "
# Requests of one call that are on their way at once.
_IN_FLIGHT = 3
# Seconds that no request takes. With a limit, Python waits for a socket in poll(), which a signal ends even if its handler asks for
# system calls to be restarted, as that of polars does.
_NO_LIMIT = 10_000_000
# Seconds until a request that did not fit into the server's memory is sent again.
_PAUSE = 0.02
# Seconds that a server without requests has to stop.
_PATIENCE = 5
# Variables with options of servers, which are not for this one.
_FOREIGN = re.compile("SCONCE_(API|CORS|HOST|LOG|MAX|PAYLOAD|PORT|REQUEST|SHUTDOWN|TLS|UNIX)_")
_ARROW = "application/vnd.apache.arrow.stream"
# Seconds until a call in another thread notices that nobody waits for it any more.
_NOTICE = 0.05

# What tells a call in another thread that nobody waits for it any more.
CANCELLED: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


class Cancelled(Exception):
    """Nobody waits for the call any more."""


class Refused(Exception):
    """The server's sentence on a request, and the number of the request in its call."""

    def __init__(self, message: str, request: int) -> None:
        super().__init__(message)
        self.request = request


class _Connection:
    """A connection to the server, which says the length of each body. http.client would add 0.2 ms to each answer, whose headers it
    parses as those of mail."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(_NO_LIMIT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb")

    def receive(self) -> tuple[int, dict[str, str], bytes]:
        """The status of the next answer, its headers, and its body.

        Raises OSError if the server closes the connection.
        """
        first, headers = self._file.readline().split(), {}
        for line in iter(self._file.readline, b"\r\n"):
            name, separator, value = line.decode("latin-1").partition(":")
            if not separator:
                raise ConnectionResetError("the answer ends early")
            headers[name.lower()] = value.strip()
        length = int(headers["content-length"])
        body = self._file.read(length)
        if len(body) < length:
            raise ConnectionResetError("the answer ends early")
        return int(first[1]), headers, body

    def close(self) -> None:
        """Closes it, whatever is on the way."""
        self._file.close()
        self.sock.close()


class _Sent(NamedTuple):
    """A request on its way. A connection that was used before may be closed by the server, which does not wait for long."""

    connection: _Connection
    body: bytes
    is_new: bool


@dataclass
class Answer:
    """A body, and the texts of its request that were truncated: index, tokens, and the tokens that were kept."""

    body: bytes
    truncated: list[tuple[int, int, int]]
    truncated_count: int


class Server:
    """A process of `sconce serve`, which has loaded its model.

    Raises SconceError with the sentence of sconce if it has not.
    """

    def __init__(self, command: str, arguments: Sequence[str]) -> None:
        key = secrets.token_hex()
        environment = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
        environment["SCONCE_API_KEY"] = key
        limits = [f"--request-timeout={_NO_LIMIT}", "--max-client-batch-size=1000000", "--payload-limit=256MB"]
        where = ["serve", "--quiet", "--stop-with-input", "--host=127.0.0.1", "--port=0", *limits]
        self._process = start([command, *where, *arguments], env=environment, stdout=subprocess.DEVNULL)
        self._headers = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._idle: deque[_Connection] = deque()
        self._errors: list[str] = []
        self._port: int | None = None
        self._is_told = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="sconce-log", daemon=True)
        self._listener.start()
        try:
            # A limit, because a signal does not end every wait.
            while not self._is_told.wait(0.2):
                pass
            if self._port is None:
                raise self._failure()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _listen(self) -> None:
        """Reads what the server says: where it listens, warnings, which are logged, and errors."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").rstrip()
            port = re.search(r"listening on http://127\.0\.0\.1:(\d+) ", text)
            if port:
                self._port = int(port[1])
                self._is_told.set()
            elif text.startswith(_WARNING):
                _log.warning(text[len(_WARNING) :])
            else:
                self._errors.append(text)
        self._is_told.set()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON of a page."""
        (answer,) = self._exchange("GET", path, [b""], "application/json")
        found: dict[str, Any] = json.loads(answer.body)
        return found

    def post(self, path: str, bodies: Iterable[bytes], arrow: bool = False) -> Iterator[Answer]:
        """The answers to requests, in their order.

        Raises Refused if the server refuses one, and SconceError if it has ended.
        """
        return self._exchange("POST", path, bodies, _ARROW if arrow else "application/json")

    def _exchange(self, method: str, path: str, bodies: Iterable[bytes], accept: str) -> Iterator[Answer]:
        head = f"{method} {path} HTTP/1.1\r\n{self._headers}Accept: {accept}\r\nContent-Length: "
        waiting = iter(enumerate(bodies))
        pending: dict[int, _Sent] = {}
        answers: dict[int, Answer | Refused] = {}
        following = 0
        try:
            while True:
                while len(pending) < _IN_FLIGHT and len(answers) < _IN_FLIGHT:
                    request = next(waiting, None)
                    if request is None:
                        break
                    pending[request[0]] = self._send(head, request[1])
                if following in answers:
                    found = answers.pop(following)
                    if isinstance(found, Refused):
                        raise found
                    yield found
                    following += 1
                    continue
                if not pending:
                    return
                index = _readable(pending)
                sent = pending.pop(index)
                answer = self._receive(sent, index)
                if answer is None:
                    time.sleep(_PAUSE)
                    pending[index] = self._send(head, sent.body)
                else:
                    answers[index] = answer
        finally:
            # The server forgets the texts of a client that has gone.
            for sent in pending.values():
                sent.connection.close()

    def _send(self, head: str, body: bytes) -> _Sent:
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = self._connect(), True
            try:
                if is_new or not _poll([connection], 0):
                    connection.sock.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
                    return _Sent(connection, body, is_new)
                connection.close()
            except OSError:
                # The server may have refused the request before it had all of it.
                return _Sent(connection, body, is_new)
            except BaseException:
                connection.close()
                raise

    def _connect(self) -> _Connection:
        assert self._port is not None
        try:
            return _Connection(self._port)
        except OSError as error:
            raise self._failure() from error

    def _receive(self, sent: _Sent, index: int) -> Answer | Refused | None:
        """The answer to a request. None: it did not fit beside others, or its connection was closed, and it has to be sent again."""
        connection = sent.connection
        try:
            status, headers, body = connection.receive()
        except OSError as error:
            connection.close()
            if sent.is_new and self._has_ended():
                raise self._failure() from error
            return None
        except BaseException:
            connection.close()
            raise
        if headers.get("connection") == "close":
            connection.close()
        else:
            self._idle.append(connection)
        if status == 429:
            return None
        if status != 200:
            return Refused(json.loads(body)["error"].replace("options.", ""), index)
        entries = re.findall(r"(\d+):(\d+)>(\d+)", headers.get("x-truncated", ""))
        truncated = [(int(index), int(tokens), int(kept)) for index, tokens, kept in entries]
        return Answer(body, truncated, int(headers.get("x-truncated-count", 0)))

    def _failure(self) -> SconceError:
        """Why the process has ended, or does not listen any more."""
        if not self._has_ended():
            self._process.kill()
        code = self._process.wait()
        self._listener.join(timeout=_PATIENCE)
        return failure(code, self._errors)

    def _has_ended(self) -> bool:
        try:
            self._process.wait(timeout=_PATIENCE)
            return True
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        """Ends the input and waits for the process to end."""
        self._close_connections()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self._has_ended():
            self._process.kill()
        self._clean_up()

    def kill(self) -> None:
        """Ends the process at once."""
        self._close_connections()
        self._process.kill()
        self._clean_up()

    def _close_connections(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _clean_up(self) -> None:
        self._process.wait()
        self._listener.join(timeout=_PATIENCE)
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def forget(self) -> None:
        """In a process that was forked from the owner of the server: closes the copies of what belongs to it."""
        self._close_connections()
        null = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stderr):
            # Another thread may have held the lock of a file at the fork, so it is not closed.
            if pipe is not None and not pipe.closed:
                os.dup2(null, pipe.fileno(), inheritable=False)
        os.close(null)
        # It is no child of this process: there is nothing to wait for.
        self._process.returncode = 0


def _poll(connections: Iterable[_Connection], timeout: float | None) -> list[object]:
    """The connections that have something to read."""
    with selectors.SelectSelector() if os.name == "nt" else selectors.PollSelector() as selector:
        for connection in connections:
            selector.register(connection.sock, selectors.EVENT_READ, connection)
        return [key.data for key, _ in selector.select(timeout)]


def _readable(pending: dict[int, _Sent]) -> int:
    """The first of the requests that is answered. Each of them has to be read soon: the server does not wait for long.

    Raises Cancelled if nobody waits for the call any more.
    """
    cancelled = CANCELLED.get()
    if len(pending) == 1 and cancelled is None:
        return next(iter(pending))
    ready: list[object] = []
    while not ready:
        if cancelled is not None and cancelled.is_set():
            raise Cancelled
        ready = _poll((sent.connection for sent in pending.values()), None if cancelled is None else _NOTICE)
    return next(index for index, sent in pending.items() if sent.connection in ready)
