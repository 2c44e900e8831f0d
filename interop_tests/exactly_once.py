"""A client whose filters overlap, and which gets messages of QoS 2 over a server that ends again
and again."""

from __future__ import annotations

from collections.abc import Callable

from interop_tests.mqtt_raw_client import Publish, RawClient
from interop_tests.mqtt_wire import pubcomp, pubrec

FILTERS = (("t/#", 2), ("t/+", 2), ("+/1", 1))
"""Of which all match the topic `t/1`."""


def receive_once(port: Callable[[], int], count: int, interrupt: Callable[[], None]) -> list[bytes]:
    """Receive what waits for the session of the client `c`; returns the bodies in their order.

    Each message may come again with its packet id and DUP until it is released. Anything else that
    comes twice is among the bodies twice, or behind the last as something that nobody expects.

    Args:
        port: where the server is now.
        interrupt: ends it, and brings it back.
    """
    found: list[bytes] = []
    unreleased: dict[int, bytes] = {}
    packets = 25
    while len(found) < count or unreleased:
        client = RawClient.connected(port(), "c", clean=False, present=True)
        answered: set[int] = set()  # of these, PUBREL comes on this connection
        packets += 25  # an end may take back all of what the client acknowledged last
        for _ in range(packets):
            if len(found) == count and not answered & unreleased.keys() and answered:
                break
            packet = client.receive()
            if packet[0] >> 4 == 6:  # PUBREL
                packet_id = int.from_bytes(packet[2:4], "big")
                unreleased.pop(packet_id, None)
                client.send(pubcomp(packet_id))
                continue
            message = Publish(packet)
            if message.packet_id in unreleased:
                assert (message.duplicate, unreleased[message.packet_id]) == (True, message.body)
            else:
                unreleased[message.packet_id] = message.body
                found.append(message.body)
            if message.duplicate or len(found) % 3:
                answered.add(message.packet_id)
                client.send(pubrec(message.packet_id))
        if len(found) < count or unreleased:
            interrupt()
            client.socket.close()
    client.expect_nothing_before_ping()
    client.disconnect()
    return found
