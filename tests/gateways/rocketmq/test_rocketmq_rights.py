"""What each request needs, asked of a real engine with users: nobody, a user without a rule, one
with rights elsewhere, and who owns what is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from polymq.gateways.rocketmq.limits import Limits as RocketmqLimits
from polymq.gateways.rocketmq.protocol import REQUESTS
from polymq.gateways.rocketmq.requests import HANDLERS
from polymq.gateways.rocketmq.rights import RIGHTS, Right
from polymq.gateways.rocketmq.server import Server as RocketmqServer
from polymq.net.connection import Context
from polymq.remoting.codes import RequestCode
from polymq.remoting.frames import Command
from polymq.remoting.records import iterate_records
from polymq.remoting.signing import Credentials, sign
from tests.gateways.rocketmq.test_rocketmq_server import Peer
from tests.harness.broker import Broker
from tests.harness.people import add_user, allow, take_back

NO_PERMISSION, SUCCESS, SYSTEM_BUSY, INVALID = 16, 0, 2, 29
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
TOPIC, GROUP, CLIENT = "orders", "billing", "10.0.0.1@7"
RULES = {
    "owner": (
        ("publish,create,subscribe", f"{TOPIC}.#"),
        ("subscribe,create", f"%RETRY%{GROUP}.#"),
    ),
    "mal": (("publish,create,subscribe", "mal.#"), ("subscribe,create", "%RETRY%mine.#")),
    "bare": (),
}
"""What each user may do; `root` is an administrator."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def consumer(group: str = GROUP, topic: str = TOPIC, **more: object) -> dict[str, object]:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, **more}
    return {"groupName": group, "subscriptionDataSet": [subscription]}


def beat(*consumers: object, producers: tuple[str, ...] = (), client: str = CLIENT) -> bytes:
    return json.dumps(
        {
            "clientID": client,
            "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": name} for name in producers],
        }
    ).encode()


def lock_of(client: str = CLIENT, queue_count: int = 1) -> bytes:
    queues = [
        {"topic": TOPIC, "brokerName": "broker-a", "queueId": at} for at in range(queue_count)
    ]
    return json.dumps({"consumerGroup": GROUP, "clientId": client, "mqSet": queues}).encode()


def pull(**more: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
        **more,
    }  # fmt: skip


def send(topic: str = TOPIC, **more: object) -> dict[str, object]:
    wanted = {"a": "shop", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
    return {**wanted, "i": "", **more}


ASKED: dict[int, tuple[dict[str, object], bytes]] = {
    10: ({"topic": TOPIC, "queueId": 0}, b"x"),
    310: (send(), b"x"),
    320: (send(), bytes((0, 0, 0, 23, *[0] * 12, 0, 0, 0, 1)) + b"x\x00\x00"),
    36: ({"offset": 0, "group": GROUP}, b""),
    37: (
        {
            "producerGroup": "shop",
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": COMMIT,
        },
        b"",
    ),
    11: (pull(), b""),
    361: (pull(), b""),
    12: ({"topic": TOPIC, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}, b""),
    33: ({"offset": 0}, b""),
    14: ({"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}, b""),
    15: ({"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 1}, b""),
    29: ({"topic": TOPIC, "queueId": 0, "timestamp": 1}, b""),
    30: ({"topic": TOPIC, "queueId": 0}, b""),
    31: ({"topic": TOPIC, "queueId": 0}, b""),
    32: ({"topic": TOPIC, "queueId": 0}, b""),
    34: ({}, beat(consumer(), producers=("shop",))),
    35: ({"clientID": CLIENT, "producerGroup": "shop", "consumerGroup": GROUP}, b""),
    38: ({"consumerGroup": GROUP}, b""),
    41: ({}, lock_of()),
    42: ({}, lock_of()),
    46: ({}, json.dumps({"subscriptionData": {"topic": TOPIC}}).encode()),
    17: ({"topic": "new", "readQueueNums": 1, "writeQueueNums": 1}, b""),
    215: ({"topic": TOPIC}, b""),
    21: ({}, b""),
    200: ({}, json.dumps({"groupName": GROUP, "retryMaxTimes": 3}).encode()),
    201: ({}, b""),
    207: ({"groupName": GROUP}, b""),
    202: ({"topic": TOPIC}, b""),
    203: ({"consumerGroup": GROUP}, b""),
    204: ({"producerGroup": "shop"}, b""),
    208: ({"consumerGroup": GROUP}, b""),
    28: ({}, b""),
    26: ({}, b""),
    351: ({"topic": TOPIC}, b""),
    352: ({"group": GROUP}, b""),
    300: ({"topic": TOPIC}, b""),
    343: ({"group": GROUP}, b""),
    222: ({"topic": TOPIC, "group": GROUP, "timestamp": -1}, b""),
    216: ({"topic": TOPIC}, b""),
    105: ({"topic": TOPIC}, b""),
    106: ({}, b""),
    206: ({}, b""),
}
"""What is asked about things that are there, by code."""
LAST = (207, 215)
"""The administrator's turn comes last for these: they take away what others ask for."""


class Client(Peer):
    """One that keeps what the server asks and tells."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.reported: list[Command] = []


@dataclass(slots=True)
class Stage:
    """A server with users, and one client for each of them."""

    broker: Broker
    server: RocketmqServer
    port: int
    keys: dict[str, Credentials]
    opaque: int = 0
    peers: list[Client] = field(default_factory=list)

    @property
    def written(self) -> int:
        return int(self.broker.engine.core.log.appended)

    async def connect(self) -> Client:
        self.peers.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.peers[-1]

    async def close(self) -> None:
        for peer in self.peers:
            peer.writer.close()
            await peer.writer.wait_closed()
        await self.server.stop(0)

    async def ask(
        self, peer: Client, user: str | None, code: int, body: bytes = b"", /, **fields: object
    ) -> Command:
        """The answer to a request of this user."""
        self.opaque += 1
        sent = {name: str(value) for name, value in fields.items()}
        if user is not None:
            sent = sign(sent, body, self.keys[user])
        peer.send_command(Command(code=code, opaque=self.opaque, fields=sent, body=body))
        while True:
            waiting = asyncio.ensure_future(peer.answer())
            while not waiting.done():
                self.broker.step()
                await asyncio.sleep(0)
            answer = waiting.result()
            if answer.is_response:
                assert answer.opaque == self.opaque
                return answer
            peer.reported.append(answer)

    async def asked(self, peer: Client, user: str | None, code: int) -> Command:
        fields, body = ASKED[code]
        return await self.ask(peer, user, code, body, **fields)


@asynccontextmanager
async def stage(broker: Broker, **limits: Any) -> AsyncIterator[Stage]:
    add_user(broker, "root", "admin")
    keys = {}
    for number, name in enumerate((*RULES, "root")):
        if name != "root":
            add_user(broker, name)
        for actions, pattern in RULES.get(name, ()):
            allow(broker, name, actions, pattern)
        keys[name] = Credentials(access_key=f"KEYNUMBER{number}", secret_key=f"{number}" * 64)
        broker.engine.users.add_access_key(name, keys[name].access_key, keys[name].secret_key)
    context = Context(asyncio.get_running_loop())
    server = RocketmqServer(
        port=broker.port, context=context, limits=RocketmqLimits(**limits) if limits else None
    )
    made = Stage(broker, server, await server.start("127.0.0.1", 0), keys)
    try:
        yield made
    finally:
        await made.close()
        context.close()


def play(broker: Broker, story: Callable[[Stage], Awaitable[None]], **limits: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), stage(broker, **limits) as made:
            await story(made)

    asyncio.run(whole())


async def set_up(made: Stage) -> Client:
    """The owner publishes, prepares a message, joins its group, and has a queue to itself."""
    peer = await made.connect()
    for code, body, fields in (
        (310, b"first", send()),
        (310, b"secret half", send(f=PREPARED, i="TRAN_MSG\x01true\x02PGROUP\x01shop\x02")),
        (34, beat(consumer(), producers=("shop",)), {}),
        (41, lock_of(), {}),
    ):
        answer = await made.ask(peer, "owner", code, body, **fields)
        assert answer.code == SUCCESS, (code, answer.remark)
    return peer


def test_every_request_that_is_served_has_a_row_and_a_question() -> None:
    served = set(REQUESTS)
    assert {*HANDLERS, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE} == served
    assert set(RIGHTS) == served, "which right does it need?"
    assert set(ASKED) == served, "what does a stranger ask with it?"


@pytest.mark.parametrize("user", [None, "bare"])
def test_who_may_do_nothing_is_refused_whatever_it_asks(broker: Broker, user: str | None) -> None:
    """And leaves nothing behind: not in the log, not in any table."""

    async def story(made: Stage) -> None:
        await set_up(made)
        made.broker.step(30)  # what gathers for a moment is written
        peer, before = await made.connect(), made.written
        for code in ASKED:
            answer = await made.asked(peer, user, code)
            assert (answer.code, answer.body) == (NO_PERMISSION, b""), (code, answer.remark)
        assert made.written == before
        shared = made.server._shared
        assert list(shared.members.consumers[GROUP].members) == [CLIENT]
        assert len(shared.members.producers["shop"]) == 1

    play(broker, story)


def test_a_right_to_one_group_is_none_to_another(broker: Broker) -> None:
    """Who may be in a group of its own learns nothing of others, and changes nothing of theirs."""

    async def story(made: Stage) -> None:
        owner = await set_up(made)
        made.broker.step(30)
        peer, before = await made.connect(), made.written
        for code in ASKED:
            answer = await made.asked(peer, "mal", code)
            right = RIGHTS[code]
            said = answer.body + (answer.remark or "").encode()
            if right is Right.NOTHING:
                assert answer.code == SUCCESS, (code, answer.remark)
                assert GROUP.encode() not in said, code
                assert TOPIC.encode() not in said, code
            elif right in (Right.END, Right.VIEW):
                assert (answer.code != SUCCESS, answer.body) == (True, b""), code
            else:
                assert (answer.code, answer.body) == (NO_PERMISSION, b""), (code, answer.remark)
        assert made.written == before
        members = json.loads((await made.asked(owner, "owner", 38)).body)
        assert members == {"consumerIdList": [CLIENT]}
        stored = json.loads((await made.ask(owner, "owner", 41, lock_of())).body)
        assert len(stored["lockOKMQSet"]) == 1

    play(broker, story)


def test_an_administrator_may_ask_everything(broker: Broker) -> None:
    async def story(made: Stage) -> None:
        await set_up(made)
        peer = await made.connect()
        codes = [code for code in ASKED if code not in (*LAST, 34)]
        for code in (*codes, *LAST):
            answer = await made.asked(peer, "root", code)
            assert answer.code != NO_PERMISSION, (code, answer.remark)

    play(broker, story)


def test_the_owner_of_a_group_may_do_what_members_do(broker: Broker) -> None:
    """The rules that the documents name are enough: no right beyond them is needed."""

    async def story(made: Stage) -> None:
        peer = await set_up(made)
        for code in (38, 14, 15, 11, 41, 42, 203, 208, 343, 352, 300, 105, 30, 46, 35, 34):
            answer = await made.asked(peer, "owner", code)
            assert answer.code != NO_PERMISSION, (code, answer.remark)

    play(broker, story)


def test_rights_that_are_taken_back_are_gone_with_the_next_request(broker: Broker) -> None:
    async def story(made: Stage) -> None:
        peer = await set_up(made)
        assert (await made.asked(peer, "owner", 38)).code == SUCCESS
        take_back(made.broker, "owner", "subscribe", f"%RETRY%{GROUP}.#")
        for code in (38, 34, 41, 14):
            assert (await made.asked(peer, "owner", code)).code == NO_PERMISSION, code
        allow(made.broker, "owner", "subscribe", "%RETRY%.*.#")  # every group
        for code in (34, 38):
            assert (await made.asked(peer, "owner", code)).code == SUCCESS, code

    play(broker, story)


# --- half messages ----------------------------------------------------------------------------


def ending(half: Command, how: int) -> dict[str, object]:
    return {
        "producerGroup": "shop",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": how,
    }


async def half_of(made: Stage, peer: Client) -> Command:
    fields = send(f=PREPARED, i="TRAN_MSG\x01true\x02PGROUP\x01shop\x02")
    half = await made.ask(peer, "owner", 310, b"secret half", **fields)
    assert half.code == SUCCESS, half.remark
    return half


def test_only_who_prepared_a_message_ends_it(broker: Broker) -> None:
    """Another user is refused although it names the offset, the place and the group; a decision
    that comes too late is told so."""

    async def story(made: Stage) -> None:
        peer = await made.connect()
        half = await half_of(made, peer)
        for how in (COMMIT, ROLLBACK):
            answer = await made.ask(peer, "mal", 37, **ending(half, how))
            assert (answer.code, "another user" in (answer.remark or "")) == (NO_PERMISSION, True)
        assert (await made.ask(peer, "owner", 37, **ending(half, ROLLBACK))).code == SUCCESS
        assert (await made.ask(peer, "owner", 37, **ending(half, ROLLBACK))).code == SUCCESS
        late = await made.ask(peer, "owner", 37, **ending(half, COMMIT))
        assert (late.code, "rolled back" in (late.remark or "")) == (INVALID, True)
        second = await half_of(made, peer)
        assert (await made.ask(peer, "root", 37, **ending(second, COMMIT))).code == SUCCESS
        late = await made.ask(peer, "owner", 37, **ending(second, ROLLBACK))
        assert (late.code, "too late" in (late.remark or "")) == (INVALID, True)

    play(broker, story)


def test_only_producers_of_the_same_user_are_asked(broker: Broker) -> None:
    """Whoever says that it is in the producer group: the question shows the whole message. An
    administrator is asked where nobody else is there."""

    async def story(made: Stage) -> None:
        owner, mal, root = [await made.connect() for _ in range(3)]
        half = await half_of(made, owner)
        assert (await made.ask(mal, "mal", 34, beat(producers=("shop",)))).code == SUCCESS
        await made.ask(root, "root", 34, beat(producers=("shop",), client="admin"))
        made.broker.step(40)
        assert (await made.ask(root, "root", 206)).code == SUCCESS
        assert [(one.code, b"secret half" in one.body) for one in root.reported] == [(39, True)] * 2
        await made.ask(owner, "owner", 34, beat(producers=("shop",), client="owner"))
        made.broker.step(40)
        for peer, user in ((owner, "owner"), (root, "root"), (mal, "mal")):
            assert (await made.ask(peer, user, 206)).code == SUCCESS
        assert {one.fields["tranStateTableOffset"] for one in owner.reported} == {
            half.fields["queueOffset"]
        }
        assert len(root.reported) == 2
        assert mal.reported == []

    play(broker, story)


def make_anew(broker: Broker, name: str, *rules: tuple[str, str]) -> Credentials:
    """Delete a user, and make another one of the same name with these rules; returns its key."""
    users = broker.engine.users
    users.delete(name)
    add_user(broker, name)
    for actions, pattern in rules:
        allow(broker, name, actions, pattern)
    key = Credentials(access_key="ANOTHERKEY", secret_key="a" * 64)
    users.add_access_key(name, key.access_key, key.secret_key)
    return key


def test_a_new_user_of_the_same_name_has_nothing_of_the_old_ones_half_messages(
    broker: Broker,
) -> None:
    """It is not asked about them and ends none, although it may publish there; an administrator
    does."""

    async def story(made: Stage) -> None:
        halves = [await half_of(made, await made.connect()) for _ in range(3)]
        made.keys["owner"] = make_anew(made.broker, "owner", ("publish,create", f"{TOPIC}.#"))
        peer = await made.connect()
        assert (await made.ask(peer, "owner", 34, beat(producers=("shop",)))).code == SUCCESS
        made.broker.step(40)
        for half, how in ((halves[0], COMMIT), (halves[1], ROLLBACK)):
            answer = await made.ask(peer, "owner", 37, **ending(half, how))
            assert (answer.code, "another user" in (answer.remark or "")) == (NO_PERMISSION, True)
        assert peer.reported == []
        assert made.broker.info(TOPIC).max_offsets[0] == 0
        root = await made.connect()
        for half, how in zip(halves, (COMMIT, ROLLBACK, COMMIT), strict=True):
            assert (await made.ask(root, "root", 37, **ending(half, how))).code == SUCCESS
        own = await half_of(made, peer)
        assert (await made.ask(peer, "owner", 37, **ending(own, COMMIT))).code == SUCCESS

    play(broker, story)


def test_who_may_not_publish_any_more_does_not_commit(broker: Broker) -> None:
    """The half message waits on: it is committed when the right is back, or rolled back."""

    async def story(made: Stage) -> None:
        peer = await made.connect()
        half, other = await half_of(made, peer), await half_of(made, peer)
        take_back(made.broker, "owner", "publish", f"{TOPIC}.#")
        refused = await made.ask(peer, "owner", 37, **ending(half, COMMIT))
        assert (refused.code, refused.remark) == (
            NO_PERMISSION,
            f"user 'owner' may not publish {TOPIC}",
        )
        assert (await made.ask(peer, "owner", 37, **ending(other, ROLLBACK))).code == SUCCESS
        assert made.broker.info(TOPIC).max_offsets[0] == 0
        allow(made.broker, "owner", "publish", f"{TOPIC}.#")
        assert (await made.ask(peer, "owner", 37, **ending(half, COMMIT))).code == SUCCESS
        assert made.broker.info(TOPIC).max_offsets[0] == 1

    play(broker, story)


# --- members ----------------------------------------------------------------------------------


def test_a_client_id_and_its_locks_belong_to_the_user_who_brought_them(broker: Broker) -> None:
    """Also between users who may both be in the group."""

    async def story(made: Stage) -> None:
        owner = await set_up(made)
        for actions, pattern in RULES["owner"]:
            allow(made.broker, "mal", actions, pattern)
        peer = await made.connect()
        stolen = await made.ask(peer, "mal", 34, beat(consumer()))
        assert (stolen.code, "another user" in (stolen.remark or "")) == (NO_PERMISSION, True)
        await made.asked(peer, "mal", 35)
        assert json.loads((await made.asked(owner, "owner", 38)).body)["consumerIdList"] == [CLIENT]
        assert (await made.ask(peer, "mal", 42, lock_of())).code == SUCCESS
        assert json.loads((await made.ask(peer, "mal", 41, lock_of())).body) == {"lockOKMQSet": []}
        again = await made.connect()  # the same user's client, over a new connection
        assert (await made.ask(again, "owner", 34, beat(consumer()))).code == SUCCESS

    play(broker, story)


@pytest.mark.parametrize("how", ["group", "topic", "disabled", "deleted"])
def test_a_member_leaves_when_it_loses_a_right(broker: Broker, how: str) -> None:
    """At once: the others are told, and may lock its queues. What does not concern it changes
    nothing."""

    async def story(made: Stage) -> None:
        owner, root = await made.connect(), await made.connect()
        users = made.broker.engine.users
        await made.ask(root, "root", 310, b"x", **send())
        await made.ask(root, "root", 34, beat(consumer(), client="other"))
        assert (await made.asked(owner, "owner", 34)).code == SUCCESS
        await made.ask(root, "root", 206)  # it is told before this is answered
        root.reported.clear()

        async def looks() -> tuple[list[str], int, int]:
            """The members, how many queues root can lock, and how often it was told."""
            members = json.loads((await made.asked(root, "root", 38)).body)["consumerIdList"]
            locked = await made.ask(root, "root", 41, lock_of("other"))
            return members, len(json.loads(locked.body)["lockOKMQSet"]), len(root.reported)

        assert (await made.asked(owner, "owner", 41)).code == SUCCESS
        take_back(made.broker, "mal", "subscribe", "mal.#")
        allow(made.broker, "owner", "publish", "more.#")
        assert await looks() == (["other", CLIENT], 0, 0)
        match how:
            case "group":
                take_back(made.broker, "owner", "subscribe", f"%RETRY%{GROUP}.#")
            case "topic":
                take_back(made.broker, "owner", "subscribe", f"{TOPIC}.#")
            case "disabled":
                users.set_disabled("owner", True)
            case "deleted":
                users.delete("owner")
        assert await looks() == (["other"], 1, 1)

    play(broker, story)


@pytest.mark.parametrize(
    ("refused", "named"),
    [
        (consumer("other"), "%RETRY%other"),
        (consumer(topic="other"), "other"),
        (consumer("uncreated"), "%RETRY%uncreated"),
    ],
)
def test_a_refused_heartbeat_joins_no_group(
    broker: Broker, refused: dict[str, object], named: str
) -> None:
    """Neither the groups that its user may be in, whichever of its entries was refused."""

    async def story(made: Stage) -> None:
        await set_up(made)
        allow(made.broker, "owner", "subscribe", "%RETRY%uncreated.#")
        peer = await made.connect()
        answer = await made.ask(peer, "owner", 34, beat(consumer(), refused, client="second"))
        assert answer.code == NO_PERMISSION
        assert named in (answer.remark or "")
        members = json.loads((await made.asked(peer, "owner", 38)).body)
        assert members == {"consumerIdList": [CLIENT]}

    play(broker, story)


def test_only_queues_that_exist_are_locked(broker: Broker) -> None:
    async def story(made: Stage) -> None:
        peer = await set_up(made)
        answer = await made.ask(peer, "owner", 41, lock_of(queue_count=1000))
        assert len(json.loads(answer.body)["lockOKMQSet"]) == 1

    play(broker, story)


def test_what_one_client_brings_is_bounded(broker: Broker) -> None:
    """Groups in a heartbeat, topics of a group, bytes, and memberships of a connection."""

    async def story(made: Stage) -> None:
        peer = await set_up(made)
        groups = [consumer(f"g{number}", "mal") for number in range(3)]
        topics = {**consumer(), "subscriptionDataSet": [{"topic": f"t{n}"} for n in range(3)]}
        for body, level in (
            (beat(*groups), "groups"),
            (beat(topics), "topics"),
            (beat(consumer(subString="x" * 3000)), "bytes"),
        ):
            answer = await made.ask(peer, "root", 34, body)
            assert (answer.code, level in (answer.remark or "")) == (SYSTEM_BUSY, True)
        bodies = [beat(consumer(), client=f"c{number}") for number in range(4)]
        codes = [(await made.ask(peer, "owner", 34, body)).code for body in bodies]
        assert codes == [SUCCESS, SYSTEM_BUSY, SYSTEM_BUSY, SYSTEM_BUSY]

    play(
        broker,
        story,
        groups_per_client_max=2,
        subscriptions_per_group_max=2,
        client_bytes_max=2000,
        memberships_per_client_max=3,
    )


def test_a_group_is_made_only_with_the_right_to(broker: Broker) -> None:
    """To be a member is one right, to make the group and its retry topic another."""

    async def story(made: Stage) -> None:
        peer = await made.connect()
        allow(made.broker, "owner", "subscribe", "%RETRY%.*.#")
        before = made.written
        answer = await made.ask(peer, "owner", 34, beat(consumer("other")))
        assert (answer.code, made.written) == (NO_PERMISSION, before)
        assert broker.port.groups.info("other") is None
        allow(made.broker, "owner", "create", "%RETRY%.owner")
        assert (await made.ask(peer, "owner", 34, beat(consumer("owner")))).code == SUCCESS

    play(broker, story)


# --- what comes back --------------------------------------------------------------------------


def test_the_server_stores_what_a_member_gives_back(broker: Broker) -> None:
    """By the request for it, and as libraries do that send to the retry topic; then as a dead
    letter. Nobody else can put anything there, in no way."""

    async def story(made: Stage) -> None:
        peer = await set_up(made)
        pulled = await made.asked(peer, "owner", 11)
        (record,) = iterate_records(pulled.body)
        back = {"offset": record.position, "group": GROUP}
        assert (await made.ask(peer, "owner", 36, **back)).code == SUCCESS
        retry = send(f"%RETRY%{GROUP}")
        assert (await made.ask(peer, "owner", 310, b"again", **retry)).code == SUCCESS
        assert (await made.ask(peer, "owner", 36, delayLevel=-1, **back)).code == SUCCESS
        made.broker.step(15)
        for topic, bodies in (
            (f"%RETRY%{GROUP}", [b"again", b"first"]),
            (f"%DLQ%{GROUP}", [b"first"]),
        ):
            found = await made.ask(peer, "root", 11, **pull(topic=topic))
            assert [one.body for one in iterate_records(found.body)] == bodies, topic
        for user, code, fields in (
            ("mal", 36, back),
            ("mal", 310, retry),
            ("mal", 36, {**back, "group": "mine"}),  # a message that it may not read
            ("owner", 310, send(f"%DLQ%{GROUP}")),
            ("root", 310, send(f"%DLQ%{GROUP}")),
        ):
            answer = await made.ask(peer, user, code, b"forged", **fields)
            assert answer.code != SUCCESS, (user, code)
        take_back(made.broker, "owner", "subscribe", f"%RETRY%{GROUP}.#")
        assert (await made.ask(peer, "owner", 36, **back)).code == NO_PERMISSION

    play(broker, story)


# --- servers without users --------------------------------------------------------------------


@pytest.mark.parametrize("strangers", [True, False])
def test_a_server_without_users(tmp_path: Path, strangers: bool) -> None:
    """On its own machine it is everybody's; one that others can reach lets nobody in, here too."""
    broker = Broker(tmp_path / "data")
    broker.engine.admission._strangers = strangers

    async def story() -> None:
        context = Context(asyncio.get_running_loop())
        server = RocketmqServer(port=broker.port, context=context)
        made = Stage(broker, server, await server.start("127.0.0.1", 0), {})
        try:
            peer, before = await made.connect(), made.written
            for code in (310, *(code for code in ASKED if code not in LAST)):
                answer = await made.asked(peer, None, code)
                if strangers:
                    assert answer.code != NO_PERMISSION, (code, answer.remark)
                else:
                    assert answer.code == NO_PERMISSION, (code, answer.remark)
                    assert "no users" in (answer.remark or "")
            assert (made.written == before) is not strangers
        finally:
            await made.close()
            context.close()

    asyncio.run(story())
    broker.stop()
