"""What the commands say to a running server: admin over HTTP, publishing as a CloudEvent over
HTTP, reading by offset over RocketMQ's protocol."""

from __future__ import annotations

import base64
import http.client
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from polymq.broker.port import decode_name, display_name
from polymq.errors import ExitCode, Failure
from polymq.ports import ADMIN_HEADER, ADMIN_HOST, Ports
from polymq.remoting.client import ClientSettings
from polymq.remoting.codes import ResponseCode
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.errors import CallFailed, RequestFailed, Unreachable
from polymq.remoting.records import Record, iterate_records, message_of
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.terminal import printable

ANSWER_SECONDS_MAX: Final = 30.0
WORK_SECONDS_MAX: Final = 900.0
"""For an answer that comes after much work."""
PULL_COUNT: Final = 256
PULL_BYTES: Final = 1024 * 1024
FOLLOW_SECONDS: Final = 0.2
"""How often `--follow` looks for more: below what a person notices."""
TAG_PROPERTY: Final = "TAGS"
PRINTED_BYTES_MAX: Final = 4096


class RefusedRequest(Failure):
    """The server refused a request.

    Args:
        content: of the answer.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(_code(status), _detail(status, content))
        self.status = status


class AdminClient:
    """Asks the operator's listener of a server. Every method raises Failure.

    Args:
        credentials: value of the Authorization header, for a server that has users.
        search: finds both again; None: they stay as they are.
    """

    def __init__(
        self,
        ports: Ports,
        credentials: str | None = None,
        *,
        search: Callable[[], tuple[Ports, str | None]] | None = None,
    ) -> None:
        self._search = search
        self._use(ports, credentials)

    def _use(self, ports: Ports, credentials: str | None) -> None:
        self._port = _open_port(ports.admin, "admin")
        self._headers = {} if credentials is None else {"Authorization": credentials}

    def find_again(self) -> bool:
        """Look where the server is now, and for its token: a restart changes both. Returns whether
        they have changed."""
        before = self._port, self._headers
        if self._search is not None:
            self._use(*self._search())
        return before != (self._port, self._headers)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and content of a good answer. A body is sent as JSON."""
        raw = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({ADMIN_HEADER: "cli"} if method != "GET" else {})
        return _request(ADMIN_HOST, self._port, method, path, raw, headers)

    def post_file(self, path: str, content: bytes) -> dict[str, Any]:
        """The answer to a large JSON text, which may be long in coming."""
        headers = self._headers | {ADMIN_HEADER: "cli"}
        _, answer = _request(
            ADMIN_HOST, self._port, "POST", path, content, headers, seconds=WORK_SECONDS_MAX
        )
        found: dict[str, Any] = json.loads(answer)
        return found

    def lines(self, path: str, body: object) -> Iterator[bytes]:
        """The lines of the good answer to a POST, as they come, for as long as the server sends
        some."""
        connection = http.client.HTTPConnection(ADMIN_HOST, self._port, timeout=ANSWER_SECONDS_MAX)
        try:
            raw, headers = json.dumps(body).encode(), self._headers | {ADMIN_HEADER: "cli"}
            connection.request("POST", path, body=raw, headers=headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise RefusedRequest(answer.status, answer.read())
            if connection.sock is not None:
                connection.sock.settimeout(None)  # a line may be long in coming
            yield from answer
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(ADMIN_HOST, self._port, error) from error
        finally:
            connection.close()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """A good answer's JSON value."""
        answer: dict[str, Any] = json.loads(self.request(method, path, body)[1])
        return answer

    def create_topic(self, name: str, queue_count: int, settings: Mapping[str, str]) -> bool:
        """Create; False if it was there already, and then nothing of it changes."""
        body = {"queues": queue_count, "settings": dict(settings)}
        return self.request("PUT", api_path("topics", name), body)[0] == 201

    def set_topic(self, name: str, settings: Mapping[str, str]) -> dict[str, Any]:
        """Change settings; the topic as it is then."""
        return self.ask("PATCH", api_path("topics", name), {"settings": dict(settings)})

    def find_messages(
        self, topic: str, key: str, *, since_ms: int | None, until_ms: int | None, count: int
    ) -> list[StoredMessage]:
        """Messages with a key, newest first."""
        query = {"key": key, "since_ms": since_ms, "until_ms": until_ms, "count": count}
        content = self.request("GET", api_path("topics", topic, "records", query=query))[1]
        return [stored_message(record) for record in iterate_records(content)]

    def message(self, position: str) -> StoredMessage:
        """The message at a position of the log, or with a message id."""
        content = self.request("GET", api_path("records", position))[1]
        return stored_message(next(iterate_records(content)))


def path_of(*parts: str, query: Mapping[str, object] | None = None) -> str:
    """The path of a resource, with the values of the query that are not None."""
    path = "".join("/" + quote(part, safe="") for part in parts)
    asked = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(asked)}" if asked else path


def api_path(*parts: str, query: Mapping[str, object] | None = None) -> str:
    """The path of a resource of the admin API."""
    return "/api/v1" + path_of(*parts, query=query)


def server_health(ports: Ports) -> str:
    """`ok`, or what a server says is wrong with it. Raises Failure."""
    port = _open_port(ports.admin, "admin")
    connection = http.client.HTTPConnection(ADMIN_HOST, port, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", "/health")
        status: str = json.loads(connection.getresponse().read())["status"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise _unreachable(ADMIN_HOST, port, error) from error
    finally:
        connection.close()
    return status


def publish(
    ports: Ports,
    *,
    topic: str,
    tag: str,
    body: bytes,
    content_type: str | None,
    identity: str | None,
    source: str,
    credentials: str | None = None,
) -> None:
    """Publish one event in binary mode; returns when it is stored. Raises Failure.

    Args:
        credentials: value of the Authorization header, for a server that has users.
    """
    headers = {
        "ce-specversion": "1.0",
        "ce-id": _header(identity or str(uuid.uuid4())),
        "ce-source": _header(source),
        "ce-type": _header(tag),
    }
    if content_type is not None:
        headers["Content-Type"] = content_type
    if credentials is not None:
        headers["Authorization"] = credentials
    _request(
        ports.host, _open_port(ports.http, "HTTP"), "POST", path_of("topics", topic), body, headers
    )


def _header(value: str) -> str:
    """The header form of an attribute (CloudEvents HTTP binding 3.1.3.2)."""
    return quote(value, safe="".join(chr(code) for code in range(0x21, 0x7F) if code not in b'"%'))


def _open_port(port: int | None, name: str) -> int:
    if port is None:
        raise Failure(ExitCode.UNREACHABLE, f"the server's {name} listener is not enabled")
    return port


def _request(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    *,
    seconds: float = ANSWER_SECONDS_MAX,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(host, port, error) from error
    finally:
        connection.close()
    if answer.status >= 300:
        raise RefusedRequest(answer.status, content)
    return answer.status, content


def _code(status: int) -> ExitCode:
    return ExitCode.UNREACHABLE if status == 503 else ExitCode.FAILED


def _detail(status: int, content: bytes) -> str:
    try:
        value = json.loads(content)
        text = value.get("detail") or value.get("title") if isinstance(value, dict) else None
    except ValueError:
        text = None
    return " ".join(str(text or f"the server answered {status}").split())


def _unreachable(host: str, port: int, error: BaseException) -> Failure:
    cause = error
    while cause.__cause__ is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    reason = getattr(cause, "strerror", None) or error
    return Failure(
        ExitCode.UNREACHABLE,
        f"no server answers at {host}:{port} ({reason}): start one with `polymq serve`, or name "
        "its data directory with --data-directory",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One message as it lies in the log."""

    topic: str
    tag: str | None
    queue: int
    offset: int
    position: int
    born_ms: int
    store_ms: int
    properties: dict[str, str]
    body: bytes

    def as_json(self) -> str:
        """One line; the body in base64, because any bytes may be in it."""
        return json.dumps(
            {
                "topic": self.topic,
                "tag": self.tag,
                "queue": self.queue,
                "offset": self.offset,
                "position": self.position,
                "born_ms": self.born_ms,
                "store_ms": self.store_ms,
                "properties": {
                    name: value.encode("utf-8", "replace").decode()
                    for name, value in self.properties.items()
                },
                "body_base64": base64.b64encode(self.body).decode(),
            },
            ensure_ascii=False,
        )

    def printable_body(self) -> str:
        """The body for a terminal: no control characters, and not more than a screenful."""
        text = self.body[:PRINTED_BYTES_MAX].decode("utf-8", "backslashreplace")
        shown = printable(text, allowed="\n\t")
        more = len(self.body) - PRINTED_BYTES_MAX
        return f"{shown} ... and {more:,} bytes more" if more > 0 else shown


class MessageReader:
    """Reads a topic by offset. Every method raises Failure.

    Args:
        signed: who reads, for a server that has users.
        tls: for a server whose port without TLS is closed.
    """

    def __init__(
        self,
        ports: Ports,
        topic: str,
        signed: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        port = ports.rocketmq if tls is None else ports.rocketmqs
        self._host, self._port = ports.host, _open_port(port, "RocketMQ")
        self._topic = topic
        # A person waits: better to say at once that nobody is there.
        patience = ClientSettings(attempts_max=1, call_seconds=ANSWER_SECONDS_MAX)
        address = f"{self._host}:{self._port}"
        self._client = BlockingClient(
            [address],
            settings=patience,
            credentials=signed,
            tls=None if tls is None else tls.context(),
        )

    def read(self, *, queue: int | None, start: str, follow: bool) -> Iterator[StoredMessage]:
        """Messages from `start` on, queue by queue in turn; ends at the end unless `follow`."""
        try:
            yield from self._read(queue, start, follow)
        except RequestFailed as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                text = f"there is no topic {self._topic!r}"
                raise Failure(ExitCode.FAILED, text) from error
            raise Failure(ExitCode.FAILED, error.remark or str(error)) from error
        except (Unreachable, CallFailed) as error:
            raise _unreachable(self._host, self._port, error) from error
        finally:
            self._client.close()

    def _read(self, queue: int | None, start: str, follow: bool) -> Iterator[StoredMessage]:
        route = self._client.route(self._topic)
        positions: dict[tuple[str, int], int] = {}
        for owner in route.brokers:
            for number in range(owner.queue_count):
                if queue is None or queue == number:
                    positions[owner.broker, number] = self._first(owner.broker, number, start)
        if not positions:
            raise Failure(ExitCode.FAILED, f"topic {self._topic} has no queue {queue}")
        pause = threading.Event()
        while True:
            got = False
            for (broker, number), offset in positions.items():
                for stored, after in self._pull(broker, number, offset):
                    yield stored
                    positions[broker, number] = after
                    got = True
            if not got:
                if not follow:
                    return
                pause.wait(FOLLOW_SECONDS)

    def _first(self, broker: str, number: int, start: str) -> int:
        bounds = self._client.bounds(self._topic, broker, number)
        if start == "first":
            return bounds.first
        if start == "next":
            return bounds.end
        return max(bounds.first, int(start))

    def _pull(self, broker: str, number: int, offset: int) -> Iterator[tuple[StoredMessage, int]]:
        pulled = self._client.pull(
            self._topic,
            broker,
            number,
            offset,
            count_max=PULL_COUNT,
            bytes_max=PULL_BYTES,
            whole=True,
        )
        for record in iterate_records(pulled.records):
            yield stored_message(record), record.queue_offset + 1


def _shown(stored: str) -> str:
    """The display name of a topic of the log, as far as its stored name tells."""
    try:
        return display_name(decode_name(stored))
    except ValueError:  # a hash, because the name was too long
        return stored


def stored_message(record: Record) -> StoredMessage:
    """The message that a record of the log is."""
    properties, body = message_of(record)
    return StoredMessage(
        topic=_shown(record.topic),
        tag=properties.get(TAG_PROPERTY),
        queue=record.queue_id,
        offset=record.queue_offset,
        position=record.position,
        born_ms=record.born_ms,
        store_ms=record.store_ms,
        properties=properties,
        body=body,
    )
