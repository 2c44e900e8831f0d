"""A bridge in memory, and the remote broker that it connects to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from interop_tests import mqtt_wire
from polymq.broker.port import (
    Position,
    Refused,
)
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.mqtt.bridging.bridge import Bridge, BridgeOptions
from polymq.gateways.mqtt.bridging.connection import BridgeConnection
from polymq.gateways.mqtt.bridging.failures import Failure
from polymq.gateways.mqtt.bridging.mapping import BridgeMapping
from polymq.gateways.mqtt.bridging.remotes import Remote as Address
from polymq.gateways.mqtt.bridging.rules import BridgeRule
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.loops import marker_of
from polymq.gateways.mqtt.shared import Shared
from polymq.net.connection import Context
from polymq.net.turns import Turns
from tests.gateways.mqtt.mqtt_harness import ManualLoop, MemoryTransport, SpyPort
from tests.harness.spy_port import operation

OUT = BridgeRule(pattern="t/#", direction="out", qos=1, remote_prefix="site/")
IN = BridgeRule(pattern="#", direction="in", qos=2, local_prefix="from/", remote_prefix="c/")
BOTH = BridgeRule(pattern="b/+", direction="both", qos=0)
RULES = (OUT, IN, BOTH)


def make_mapping(port: SpyPort | None = None) -> BridgeMapping:
    return BridgeMapping(
        port=cast("Any", port or SpyPort()),
        limits=Limits(),
        fixed_topic=None,
        name="up",
        rules=RULES,
        publisher="$bridge/up",
    )


class BridgePort(SpyPort):
    """An engine with documents, which may refuse what is published."""

    def __init__(self) -> None:
        super().__init__()
        self.documents_put: dict[str, Mapping[str, Any]] = {}
        self.refused: Refused | None = None

    @operation("documents.of_kind")
    def of_kind(self, _kind: str) -> Mapping[str, Mapping[str, Any]]:
        return self.documents_put

    @operation("documents.put")
    def put(self, _kind: str, key: str, value: Mapping[str, Any]) -> Position:
        self.documents_put[key] = value
        return self.append()

    def publish(self, template: Any, batch: Batch, first: int, last: int) -> Position:
        if self.refused is not None:
            raise self.refused
        return super().publish(template, batch, first, last)


class Remote:
    """The remote broker of a bridge, in memory."""

    def __init__(self, **options: Any) -> None:
        self.port = BridgePort()
        self.port.present_ids.add("$bridge/up")
        self.loop = ManualLoop()
        turns = Turns(self.loop.call_soon, clock=lambda: 0.0)
        port = cast("Any", self.port)
        shared = Shared(
            port=port,
            context=Context(cast("Any", self.loop), turns=turns),
            limits=Limits(),
            mapping=make_mapping(self.port),
            new_client_id=str,
        )
        fields = {"name": "up", "remotes": [Address("h", 1)], "rules": RULES, "client_id": "c"}
        self.bridge = Bridge(
            BridgeOptions(**{**fields, **options}),
            port=port,
            shared=shared,
            dial=cast("Any", None),
            random=lambda: 0.0,
            marker=marker_of("own"),
        )
        self.failures: list[Failure | None] = []
        self.connect()

    def connect(self) -> None:
        self.connection = BridgeConnection(self.bridge._shared, self.bridge)
        self.bridge._connection = self.connection
        self.bridge.ended = self._ended  # type: ignore[method-assign]
        self.transport = MemoryTransport(self.loop, self.connection)
        self.connection.connection_made(cast("Any", self.transport))
        self._seen = 0
        self.loop.run()

    def _ended(self, connection: BridgeConnection, failure: Failure | None) -> None:
        self.failures.append(failure)

    def send(self, *packets: bytes) -> None:
        data = b"".join(packets)
        view = memoryview(self.connection.get_buffer(-1))
        view[: len(data)] = data
        view.release()
        self.connection.buffer_updated(len(data))
        self.loop.run()

    def receive(self) -> list[bytes]:
        new = bytes(self.transport.sent[self._seen :])
        self._seen = len(self.transport.sent)
        return mqtt_wire.split_packets(new)

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        return self.port.connected[-1].calls


CONNACK_5 = b"\x20\x03\0\0\0"
