"""Property blocks of MQTT 5 as paho writes and reads them: nothing of ours is in between."""

from __future__ import annotations

import base64
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers

_PROPERTIES: Final[Any] = Properties  # paho has no types here
_SIZES: Final[Any] = VariableByteIntegers


def pack(**values: Any) -> bytes:
    """The block of a PUBLISH, its length cut off. `UserProperty` is a list of pairs."""
    properties = _PROPERTIES(PacketTypes.PUBLISH)
    for pair in values.pop("UserProperty", ()):
        properties.UserProperty = pair
    for name, value in values.items():
        setattr(properties, name, value)
    packed: bytes = properties.pack()
    _, size_bytes = _SIZES.decode(packed)
    return packed[size_bytes:]


def unpack(block: bytes) -> dict[str, Any]:
    """The properties of a block by paho's names; user properties are a list of pairs."""
    properties = _PROPERTIES(PacketTypes.PUBLISH)
    properties.unpack(_SIZES.encode(len(block)) + block)
    read: dict[str, Any] = properties.json()
    if "CorrelationData" in read:
        read["CorrelationData"] = bytes.fromhex(read["CorrelationData"])
    return read


def stored(block: bytes) -> str:
    """The value of `PMQ_MQTT5`."""
    return base64.b64encode(block).decode()
