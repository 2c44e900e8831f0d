"""Who asks at the RocketMQ listener: signed and unsigned requests, and pulls that wait."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from polymq.broker.port import Reason, Refused
from polymq.gateways.rocketmq.limits import Limits as RocketmqLimits
from polymq.remoting.frames import Command
from polymq.remoting.signing import Credentials, content_of, sign
from tests.gateways.rocketmq.rocketmq_spy_port import SpyPort
from tests.gateways.rocketmq.test_rocketmq_server import Peer, play, scene
from tests.harness import spy_port
from tests.harness.spy_port import SpyPart, operation

ANN = Credentials(access_key="KEYOFANN", secret_key="secret of ann")
BOB = Credentials(access_key="KEYOFBOB", secret_key="secret of bob")
NO_PERMISSION, BUSY, INVALID = 16, 2, 29


@dataclass(slots=True)
class Users(SpyPort):
    """A spy with users: ann and bob have a key each, and who may read is in `readers`."""

    secrets: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {
            ANN.access_key: ("ann", ANN.secret_key),
            BOB.access_key: ("bob", BOB.secret_key),
        }
    )
    readers: set[str] = field(default_factory=lambda: {"ann"})
    inside: list[tuple[str, str | None, Callable[[str], None]]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    debtors: set[str] = field(default_factory=set)
    """Who is ahead of its rates."""
    full: set[str] = field(default_factory=set)
    """Who has too many connections."""

    @operation("admission.check_signature")
    def check_signature(self, access_key: str, content: bytes, digest: bytes, address: str) -> str:
        assert address == "127.0.0.1"
        user, secret = self.secrets.get(access_key, ("", ""))
        if not user or hmac.digest(secret.encode(), content, "sha1") != digest:
            raise Refused(Reason.NOT_AUTHENTICATED, "wrong")
        return user

    def for_principal(
        self, principal: str, client_id: str | None = None, *, asked_as: object = None
    ) -> Any:
        return View(self, principal)


@dataclass(slots=True)
class View(spy_port.SpyPort):
    """The spy, as one user may use it."""

    spy: Users
    user: str

    def __getattr__(self, name: str) -> Any:
        return SpyPart(self, name) if name == "principal" else getattr(self.spy, name)

    def enter(
        self,
        expelled: Callable[[str], None],
        *,
        access_key: str | None = None,
        address: str = "",
    ) -> Callable[[], None]:
        if self.user in self.spy.full:
            raise Refused(Reason.LIMIT, f"{self.user} has too many connections")
        self.spy.inside.append((self.user, access_key, expelled))
        return lambda: self.spy.left.append(self.user)

    def check_read(self, address: tuple[str, ...]) -> None:
        if self.user not in self.spy.readers:
            raise Refused(Reason.FORBIDDEN, f"{self.user} may not read")

    def overloaded(self, resume: Callable[[], None]) -> bool:
        return self.user in self.spy.debtors


def users() -> Users:
    spy = Users()
    spy.create("t")
    spy.append("t", b"0")
    return spy


def ask(peer: Peer, opaque: int, client: Credentials | None, **more: object) -> None:
    """A pull, signed."""
    wanted = {"topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, **more}
    fields = {name: str(value) for name, value in wanted.items()}
    if client is not None:
        fields = sign(fields, b"", client)
    peer.send_command(Command(code=11, opaque=opaque, fields=fields))


def test_each_request_has_the_rights_of_who_signed_it() -> None:
    """Also behind other users' requests on the same connection; unsigned ones are of nobody."""

    async def story() -> None:
        spy = users()
        async with scene(spy=spy, user="listener") as stage:
            peer = await stage.connect()
            for opaque, client, code in (
                (1, None, NO_PERMISSION),
                (2, ANN, 0),
                (3, BOB, NO_PERMISSION),
                (4, None, NO_PERMISSION),
                (5, ANN, 0),
            ):
                ask(peer, opaque, client)
                answer = await peer.answer()
                assert (answer.opaque, answer.code) == (opaque, code)
            assert [(client, key) for client, key, _ in spy.inside] == [
                ("listener", None),
                ("ann", ANN.access_key),
                ("bob", BOB.access_key),
            ]
            peer.writer.close()
            await stage.until(lambda: len(spy.left) == 3)

    play(story)


def test_a_wrong_signature_is_refused_and_never_nobodys_request() -> None:
    """Not even where nobody may do it; and the connection stays usable."""

    async def story() -> None:
        spy = users()
        spy.readers.add("anonymous")
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            ask(peer, 1, Credentials(access_key=ANN.access_key, secret_key="guess"))
            answer = await peer.answer()
            assert (answer.code, answer.remark, answer.body) == (NO_PERMISSION, "wrong", b"")
            ask(peer, 2, Credentials(access_key="UNKNOWN", secret_key="guess"))
            assert (await peer.answer()).code == NO_PERMISSION
            ask(peer, 3, ANN)
            assert (await peer.answer()).code == 0
            ask(peer, 4, None)
            assert (await peer.answer()).code == 0

    play(story)


def test_a_request_that_was_changed_on_its_way_is_refused() -> None:
    async def story() -> None:
        async with scene(spy=users()) as stage:
            peer = await stage.connect()
            wanted = {"topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
            signed = sign(wanted, b"body", ANN)
            for opaque, fields, body, code in (
                (1, signed, b"body", 0),
                (2, signed, b"Body", NO_PERMISSION),
                (3, {**signed, "maxMsgNums": "33"}, b"body", NO_PERMISSION),
                (4, {**signed, "subscription": "x"}, b"body", NO_PERMISSION),
            ):
                peer.send_command(Command(code=11, opaque=opaque, fields=fields, body=body))
                assert (await peer.answer()).code == code, opaque

    play(story)


def test_a_signed_request_has_no_unknown_fields() -> None:
    """A piece of the body in a field that nobody looks at: the values and their order are as they
    were signed, so the signature fits, and something else would be done."""

    async def story() -> None:
        async with scene(spy=users()) as stage:
            peer = await stage.connect()
            send = {"a": "shop", "b": "t", "c": "TBW102", "d": "1", "e": "0", "f": "0"}
            send |= {"g": "1", "h": "0", "i": ""}
            pull = {"topic": "t", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
            for code, wanted in ((310, send), (320, send), (11, pull)):
                signed = sign(wanted, b"PAY 10 TO A", ANN)
                moved = {**signed, "zz": "PAY 10"}
                assert content_of(moved, b" TO A") == content_of(signed, b"PAY 10 TO A")
                peer.send_command(Command(code=code, opaque=1, fields=moved, body=b" TO A"))
                answer = await peer.answer()
                assert (answer.code, "'zz'" in (answer.remark or "")) == (INVALID, True)
            peer.send_command(Command(code=11, opaque=2, fields={**pull, "zz": "x"}))
            assert (await peer.answer()).code == NO_PERMISSION  # unsigned: only nobody's

    play(story)


def test_what_rocketmqs_clients_send_besides_is_no_unknown_field() -> None:
    async def story() -> None:
        async with scene(spy=users()) as stage:
            peer = await stage.connect()
            besides = {"bname": "broker-a", "requestSource": "1", "ns": "x", "nsd": "true"}
            ask(peer, 1, ANN, **besides)
            assert (await peer.answer()).code == 0

    play(story)


def test_a_held_pull_keeps_the_user_who_asked() -> None:
    """Whoever asks over its connection meanwhile. What it lost meanwhile it has lost."""

    async def story() -> None:
        spy = users()
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            waiting = {"queueOffset": 1, "sysFlag": 2, "suspendTimeoutMillis": 20_000}
            ask(peer, 1, ANN, **waiting)
            await stage.until(lambda: stage.server.held_count == 1)
            ask(peer, 2, BOB)
            assert (await peer.answer()).code == NO_PERMISSION
            spy.append("t", b"1")
            spy.watched.pop()()
            answer = await peer.answer()
            assert (answer.opaque, answer.code) == (1, 0)
            ask(peer, 3, ANN, **{**waiting, "queueOffset": 2})
            await stage.until(lambda: stage.server.held_count == 1)
            spy.readers = {"bob"}
            ask(peer, 4, BOB)
            assert (await peer.answer()).code == 0
            spy.append("t", b"2")
            spy.watched.pop()()
            answer = await peer.answer()
            assert (answer.opaque, answer.code, answer.body) == (3, NO_PERMISSION, b"")

    play(story)


def test_a_key_that_is_another_users_now_has_that_users_rights() -> None:
    """Such as one that was given while the broker had no users, and everybody was nobody."""

    async def story() -> None:
        spy = users()
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            ask(peer, 1, ANN)
            assert (await peer.answer()).code == 0
            spy.secrets[ANN.access_key] = ("bob", ANN.secret_key)
            ask(peer, 2, ANN)
            assert (await peer.answer()).code == NO_PERMISSION
            assert spy.left == ["ann"]
            peer.writer.close()
            await stage.until(lambda: spy.left == ["ann", "bob"])

    play(story)


def test_a_user_that_has_to_go_takes_the_connection_with_it() -> None:
    async def story() -> None:
        spy = users()
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            ask(peer, 1, ANN)
            await peer.answer()
            ((_, _, expelled),) = spy.inside
            expelled("its access key was removed")
            assert await peer.closed()

    play(story)


def test_who_has_too_many_connections_is_told_so() -> None:
    """Each time it asks; others may use the same connection."""

    async def story() -> None:
        spy = users()
        spy.full.add("ann")
        spy.readers.add("bob")
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            for opaque in (1, 2):
                ask(peer, opaque, ANN)
                answer = await peer.answer()
                assert (answer.code, answer.remark) == (BUSY, "ann has too many connections")
            ask(peer, 3, BOB)
            assert (await peer.answer()).code == 0
            spy.full.clear()
            ask(peer, 4, ANN)
            assert (await peer.answer()).code == 0

    play(story)


def test_a_connection_signs_with_a_bounded_number_of_keys() -> None:
    async def story() -> None:
        spy = users()
        spy.readers.add("bob")
        async with scene(spy=spy, limits=RocketmqLimits(access_keys_max=1)) as stage:
            peer = await stage.connect()
            ask(peer, 1, ANN)
            assert (await peer.answer()).code == 0
            ask(peer, 2, BOB)
            answer = await peer.answer()
            assert answer.code == BUSY
            assert "open another" in (answer.remark or "")
            ask(peer, 3, ANN)
            assert (await peer.answer()).code == 0

    play(story)


def test_the_rates_of_every_user_of_a_connection_count() -> None:
    """Who asked last is not the only one who has to wait."""

    async def story() -> None:
        spy = users()
        spy.readers.add("bob")
        async with scene(spy=spy) as stage:
            peer = await stage.connect()
            ask(peer, 1, ANN)
            assert (await peer.answer()).code == 0
            spy.debtors.add("ann")
            ask(peer, 2, BOB)
            assert (await peer.answer()).code == 0
            asked = len(spy.asked)
            ask(peer, 3, BOB)  # is not read before ann has paid
            other = await stage.connect()
            ask(other, 1, BOB)
            assert (await other.answer()).code == 0
            assert len(spy.asked) == asked + 1

    play(story)
