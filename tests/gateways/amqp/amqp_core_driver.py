"""Drives the protocol core as a server would, and writes down what it said, as short lines.

start-ok                        a method on channel 0
1 queue.declare                 a method on a channel
1 publish ex/key body           a publish, `!` behind it if mandatory
1 ack 5 +  /  1 nack 5 -        settled tags; + multiple, - requeue
error 505  /  error 406 on 1    the connection's or a channel's error
refused                         the protocol header was not ours
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import RemoteProtocolError
from polymq.gateways.amqp.events import HeaderReceived, HeaderRefused, MethodReceived, Traffic
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.protocol import Protocol as AmqpConnection
from polymq.gateways.amqp.protocol import Work
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.states import ChannelState, State
from tests.gateways.amqp import amqp_wire as wire

LIMITS = Limits(body_bytes_max=1000, empty_body_frames_max=3, assembling_bytes_max=1500)
WORK = Work()

HEADER = b"AMQP\x00\x00\x09\x01"
START_OK = wire.method(0, spec.ConnectionStartOk(mechanism="PLAIN", response=b"\0guest\0guest"))
TUNE_OK = wire.method(0, spec.ConnectionTuneOk(channel_max=2047, frame_max=131_072, heartbeat=60))
OPEN = wire.method(0, spec.ConnectionOpen(virtual_host="/"))
HANDSHAKE = HEADER + START_OK + TUNE_OK + OPEN


def channel_open(number: int) -> bytes:
    return wire.method(number, spec.ChannelOpen())


ANSWERS: dict[type[Method], Method] = {
    spec.ConnectionStartOk: spec.ConnectionTune(channel_max=2047, frame_max=131_072, heartbeat=60),
    spec.ConnectionOpen: spec.ConnectionOpenOk(),
    spec.ConnectionClose: spec.ConnectionCloseOk(),
    spec.ChannelOpen: spec.ChannelOpenOk(),
    spec.ChannelClose: spec.ChannelCloseOk(),
}


@dataclass
class Driver:
    """A core with automatic answers, fed in pieces like a socket feeds it."""

    limits: Limits = field(default_factory=lambda: LIMITS)

    def __post_init__(self) -> None:
        self.core = AmqpConnection(work=WORK, limits=self.limits)
        self.lines: list[str] = []
        self.publishes: list[str] = []
        self.settled: list[str] = []
        self.sent = bytearray()
        self.rest = b""

    def feed(self, data: bytes) -> None:
        """One read: what was left, then the data."""
        buffer = self.rest + data
        self.core.receive(buffer, 0, len(buffer))
        while True:
            try:
                event = self.core.next_event()
            except RemoteProtocolError as error:
                where = f" on {error.channel}" if error.channel else ""
                self.lines.append(f"error {error.code.value}{where}")
                self.sent += self.core.close(error)
                continue
            if event is None:
                break
            self.take(event)
        self.rest = buffer[self.core.position :]

    def take(self, event: object) -> None:
        match event:
            case HeaderReceived():
                self.sent += self.core.send(
                    spec.ConnectionStart(version_minor=9, mechanisms=b"PLAIN", locales=b"en_US")
                )
            case HeaderRefused(reply=reply):
                self.lines.append("refused")
                self.sent += reply
            case MethodReceived(channel=channel, method=method):
                name = method.NAME.removeprefix("connection.")
                self.lines.append(f"{channel} {name}" if channel else name)
                if type(method) in ANSWERS:
                    self.sent += self.core.send(ANSWERS[type(method)], channel)
            case Traffic():
                self.take_traffic(event)

    def take_traffic(self, traffic: Traffic) -> None:
        for run in traffic.runs:
            assert run.first < run.last
            for row in range(run.first, run.last):
                self.publishes.append(publish_line(traffic, row))
        for item in traffic.settlements:
            kind = "nack" if item.bits & codes.NEGATIVE else "ack"
            marks = " +" if item.bits & codes.MULTIPLE else ""
            marks += " -" if item.bits & codes.REQUEUE else ""
            self.settled += [
                f"{item.channel} {kind} {item.first_tag + index}{marks}"
                for index in range(item.count)
            ]


def publish_line(traffic: Traffic, row: int) -> str:
    values = traffic.batch.row(row)
    data = bytes(traffic.batch.buffer)
    address = data[values[0] : values[0] + values[1]]
    exchange = address[1 : 1 + address[0]]
    key = address[2 + address[0] :]
    body = data[values[2] : values[2] + values[3]]
    text = b"%s/%s %s" % (exchange, key, body)
    marks = " !" if values[7] & codes.MANDATORY else ""
    return f"{values[7] >> codes.CHANNEL_SHIFT} publish {text.decode('latin-1')}{marks}".rstrip(" ")


def opened(*channels: int, limits: Limits = LIMITS) -> Driver:
    """A driver behind the handshake, with these channels open, its record empty."""
    driver = Driver(limits)
    driver.feed(HANDSHAKE + b"".join(channel_open(number) for number in channels))
    assert driver.core.state is State.OPEN
    assert driver.core.channels == dict.fromkeys(channels, ChannelState.OPEN)
    driver.lines.clear()
    driver.sent.clear()
    return driver


def feed_in_pieces(driver: Driver, data: bytes, cuts: Iterable[int]) -> None:
    """Feed the data cut at these places."""
    at = 0
    for cut in [*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]:
        driver.feed(data[at:cut])
        at = cut
