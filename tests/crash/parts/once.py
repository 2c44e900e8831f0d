"""Messages that come in with QoS 2: each is there once, however often the client has to send it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import Session
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import NEVER, Message, Part, Stream, bodies_of
from tests.harness.broker import SpyLink, batch_of

CLIENT: Final = "once"
TOPIC: Final = "2"
PACKETS: Final = range(1, 6)
"""Few packet ids, so that they are soon used again."""


@dataclass(slots=True)
class Packet:
    """A PUBLISH under way.

    Attributes:
        taken: what its PUBREC waits for.
        released: what the PUBCOMP of its PUBREL waits for; `NEVER` before it is sent.
    """

    body: bytes
    taken: int
    released: int = NEVER


class Once(Part):
    """A client with a session. It uses a packet id again when it has the PUBCOMP, sends its PUBLISH
    again as long as it has no PUBREC, and the PUBREL as long as it has no PUBCOMP.

    Attributes:
        stream: the topic.
        session: what the session's answer waits for; None before there is one.
        packets: by packet id.
    """

    name: ClassVar = "QoS 2 into the broker"
    steps: ClassVar = {"publish": 8, "release": 5}

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(TOPIC)
        self.session: int | None = None
        self.packets: dict[int, Packet] = {}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        session = self._connect(actor)
        flushed = actor.world.flushed
        if step == "publish":
            done = [packet for packet, one in self.packets.items() if one.released <= flushed]
            free = [packet for packet in PACKETS if packet not in self.packets] + done
            if free:
                packets = random.sample(free, random.randint(1, len(free)))
                self._send(actor, session, packets, self.bodies(len(packets)))
        else:
            answered = [packet for packet, one in self.packets.items() if one.taken <= flushed]
            first, count = random.choice(PACKETS), random.randint(1, len(PACKETS))
            run = range(first, first + count)
            if all(packet in answered or packet not in self.packets for packet in run):
                position = int(session.released(first, count))
                for packet in run:
                    if packet in self.packets and self.packets[packet].released == NEVER:
                        self.packets[packet].released = position
        session.disconnect()

    def _send(
        self, actor: EngineActor, session: Session, packets: Sequence[int], bodies: Sequence[bytes]
    ) -> None:
        """PUBLISHes come in one read."""
        demand(session.are_new(packets), f"(a) a new message is taken for an old one of {packets}")
        start = actor.store.log.appended
        template = actor.template(TOPIC, "x")
        position = int(
            actor.engine.port.sessions.publish_once(
                template, batch_of(*bodies), 0, len(bodies), session, packets
            )
        )
        for packet, body in zip(packets, bodies, strict=True):
            self.stream.messages.append(Message(body, start, position, actor.loop.clock_ms()))
            self.packets[packet] = Packet(body, position)

    def _send_again(self, actor: EngineActor, flushed: int) -> None:
        """The connection was lost, and is there again: what has no answer is sent again. What was
        flushed may have been answered."""
        session = self._connect(actor)
        for packet, one in sorted(self.packets.items()):
            known = session.is_duplicate(packet)
            if one.released <= flushed:
                demand(not known, f"(c) the packet id {packet} was released, and is in use")
            elif one.taken <= flushed and one.released == NEVER:
                demand(known, f"(c) {one.body!r} was taken, and would be taken again")
            elif one.released == NEVER and not known:
                self._send(actor, session, [packet], [one.body])
        session.disconnect()

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.stream.forget_lost(actor, remaining)
        if self.session is not None and self.session > remaining:
            self.session = None
        for one in self.packets.values():
            if one.released > remaining:
                one.released = NEVER
        self._send_again(actor, remaining)

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        there, _ = self.stream.check(actor, flushed)
        if self.session is None or self.session > flushed:
            return
        del self.stream.messages[len(there) :]
        self._send_again(actor, flushed)
        actor.flush()
        there, _ = self.stream.check(actor, flushed)
        once = len(set(there)) == len(there)
        demand(once, f"(b) a message is there twice: {there}")
        unreleased = {one.body for one in self.packets.values() if one.released == NEVER}
        gone = unreleased - set(bodies_of(self.stream.messages))
        demand(not gone, f"(a) {sorted(gone)[:3]} did not come, however often they were sent")

    def _connect(self, actor: EngineActor) -> Session:
        """Its session, connected."""
        session = actor.engine.port.sessions.connect(
            CLIENT, clean=False, expiry_seconds=None, link=SpyLink(0), principal="u"
        )
        if self.session is None:
            self.session = actor.store.log.appended
        session.resume()
        return session
