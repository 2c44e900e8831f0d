"""What is wrong, and which side is at fault: the client (`RemoteProtocolError`), or we."""

from __future__ import annotations

from polymq.gateways.mqtt.reason_codes import ReasonCode


class ProtocolError(Exception):
    """Base of the two; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We tried to do what the protocol forbids: our bug."""


class RemoteProtocolError(ProtocolError):
    """The client broke the protocol: its connection has to be closed [MQTT-4.8.0-1],
    [MQTT-4.13.1-1].

    Args:
        rule: the normative statement or the part of the standard that was broken.
        text: one sentence for the log.
        reason: what MQTT 5 calls it: told in DISCONNECT, or in CONNACK.
        answer: what to send before closing, where that does not follow from the reason.
    """

    def __init__(
        self,
        rule: str,
        text: str,
        reason: ReasonCode = ReasonCode.PROTOCOL_ERROR,
        *,
        answer: bytes = b"",
    ) -> None:
        super().__init__(f"{text} [{rule}]")
        self.rule = rule
        self.reason = reason
        self.answer = answer


def malformed(rule: str, text: str) -> RemoteProtocolError:
    """Bytes that are no packet (5.0 part 4.13.1), as against a packet that may not come."""
    return RemoteProtocolError(rule, text, ReasonCode.MALFORMED_PACKET)
