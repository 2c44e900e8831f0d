"""PUBACK, PUBREC, PUBREL and PUBCOMP in both directions (parts 3.4 to 3.7, 4.3 and 4.4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests.mqtt5_wire import Kind, P, R, puback, pubcomp, publish, pubrec, pubrel
from interop_tests.mqtt_conformance.client import REFUSED, Case, Client
from interop_tests.mqtt_conformance.statements_5 import shows

STAYS = ((P.SESSION_EXPIRY, 60),)
"""Of a client whose session outlives the test's connections."""
ARRIVED = (R.SUCCESS, R.NO_SUBSCRIBERS)


def stored_for(case: Case, qos: int, *bodies: bytes) -> Client:
    """A subscriber to whom these messages are on their way. Its session stays."""
    subscriber = case.connect("s", props=STAYS)
    subscriber.follow((case.topic(), qos))
    publisher = case.connect("p")
    for body in bodies:
        publisher.send_message(case.topic(), body, qos=qos)
    return subscriber


def again(case: Case) -> Client:
    """The subscriber on a new connection."""
    return case.connect("s", clean=False, present=True, props=STAYS)


# --- from the client to the server ---------------------------------------------------------------


@shows("MQTT-3.3.4-1")
def test_quality_0_is_not_answered(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x"))
    client.nothing()


@shows("MQTT-3.3.4-1", "MQTT-4.3.2-4", "MQTT-2.2.1-5", "MQTT-3.4.2-1")
@pytest.mark.parametrize("packet_id", [1, 65535])
def test_quality_1_gets_puback(case: Case, packet_id: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=1, packet_id=packet_id))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.PUBACK, packet_id)
    assert found.reason in ARRIVED
    client.nothing()


@shows("MQTT-3.3.4-1", "MQTT-4.3.3-8", "MQTT-4.3.3-11", "MQTT-2.2.1-5")
@shows("MQTT-3.5.2-1", "MQTT-3.7.2-1")
def test_quality_2_gets_pubrec_and_pubcomp(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=2, packet_id=65535))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.PUBREC, 65535)
    assert found.reason in ARRIVED
    client.send(pubrel(65535))
    found = client.read()
    assert (found.kind, found.packet_id, found.reason) == (Kind.PUBCOMP, 65535, R.SUCCESS)
    client.nothing()


@shows("MQTT-3.4.2-1", "MQTT-3.5.2-1")
def test_reasons_and_properties_of_acknowledgements_may_be_left_out_or_not(case: Case) -> None:
    """A client may write the reason 0 and properties, or neither."""
    subscriber = case.connect("s")
    subscriber.follow((case.topic(), 2))
    publisher = case.connect("p")
    said = ((P.REASON, "a reason"), (P.USER, ("a", "b")))
    for reason, props in ((None, None), (0, None), (0, ()), (0, said)):
        publisher.send_message(case.topic(), b"1", qos=1)
        publisher.send_message(case.topic(), b"2", qos=2)
        message = subscriber.message(acknowledged=False)
        subscriber.send(puback(message.packet_id, reason, props))
        message = subscriber.message(acknowledged=False)
        subscriber.send(pubrec(message.packet_id, reason, props))
        assert subscriber.read().kind == Kind.PUBREL
        subscriber.send(pubcomp(message.packet_id, reason, props))
        subscriber.nothing()
        publisher.send(publish(case.topic("none"), qos=2, packet_id=9))
        assert publisher.read().reason in ARRIVED
        publisher.send(pubrel(9, reason, props))
        assert publisher.read().kind == Kind.PUBCOMP


@shows("MQTT-4.3.2-5", "MQTT-3.3.1-3")
def test_after_puback_the_same_packet_id_is_a_new_message(case: Case) -> None:
    """Also with DUP, which the subscriber does not see."""
    publisher, subscriber = case.pair((case.topic(), 1))
    for duplicate in (False, True):
        publisher.send(
            publish(case.topic(), b"x", qos=1, packet_id=7, duplicate=duplicate),
        )
        assert publisher.read().packet_id == 7
        assert not subscriber.message().duplicate


@shows("MQTT-4.3.3-10", "MQTT-4.3.3-12", "MQTT-3.3.1-3")
def test_quality_2_is_delivered_once_however_often_it_comes(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    for body in (b"1", b"2"):  # after PUBCOMP the packet identifier is a new message
        publisher.send(publish(case.topic(), body, qos=2, packet_id=7))
        assert publisher.read().kind == Kind.PUBREC
        publisher.send(publish(case.topic(), body, qos=2, packet_id=7, duplicate=True))
        found = publisher.read()
        assert (found.kind, found.packet_id) == (Kind.PUBREC, 7)
        assert found.reason < 0x80
        publisher.send(pubrel(7))
        assert publisher.read().kind == Kind.PUBCOMP
        message = subscriber.message()
        assert (message.body, message.duplicate) == (body, False)
        subscriber.nothing()


@shows("MQTT-4.3.3-10", "MQTT-4.3.3-11")
def test_quality_2_is_delivered_once_over_a_reconnection(case: Case) -> None:
    subscriber = case.connect("s")
    subscriber.follow((case.topic(), 2))
    publisher = case.connect("p", props=STAYS)
    publisher.send(publish(case.topic(), b"x", qos=2, packet_id=7))
    assert publisher.read().kind == Kind.PUBREC
    publisher.vanish()
    publisher = case.connect("p", clean=False, present=True)
    publisher.send(publish(case.topic(), b"x", qos=2, packet_id=7, duplicate=True))
    assert publisher.read().kind == Kind.PUBREC
    publisher.send(pubrel(7))
    found = publisher.read()
    assert (found.kind, found.packet_id, found.reason) == (Kind.PUBCOMP, 7, R.SUCCESS)
    assert subscriber.message().body == b"x"
    subscriber.nothing()


@shows("MQTT-4.3.3-11", "MQTT-3.7.2-1")
def test_pubrel_for_an_unknown_packet_id(case: Case) -> None:
    """0x92 says so; a server that forgets what it completed may also say 0."""
    client = case.connect()
    client.send(pubrel(4711))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.PUBCOMP, 4711)
    assert found.reason in (R.UNKNOWN_ID, R.SUCCESS)
    client.nothing()


@shows("MQTT-4.3.3-9")
def test_after_a_pubrec_that_refuses_the_packet_id_is_free(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    for _ in range(2):
        publisher.send(publish("$conformance/refused", b"x", qos=2, packet_id=7))
        found = publisher.read()
        assert (found.kind, found.packet_id) == (Kind.PUBREC, 7)
        if found.reason < 0x80:
            pytest.skip("the server takes topics that begin with $")
        assert found.reason in (*REFUSED, R.IMPLEMENTATION)
    publisher.send(publish(case.topic(), b"x", qos=2, packet_id=7))
    assert publisher.read().reason in ARRIVED
    publisher.send(pubrel(7))
    assert publisher.read().kind == Kind.PUBCOMP
    assert subscriber.message().body == b"x"


@shows("MQTT-4.3.3-13")
def test_quality_2_is_completed_although_the_message_has_expired(case: Case) -> None:
    client = case.connect()
    client.send(publish(case.topic(), b"x", qos=2, packet_id=7, props=[(P.MESSAGE_EXPIRY, 1)]))
    assert client.read().kind == Kind.PUBREC
    client.silent(1.3)
    client.send(publish(case.topic(), b"x", qos=2, packet_id=7, props=[(P.MESSAGE_EXPIRY, 1)]))
    assert client.read().kind == Kind.PUBREC
    client.send(pubrel(7))
    found = client.read()
    assert (found.kind, found.reason) == (Kind.PUBCOMP, R.SUCCESS)


# --- from the server to the client ---------------------------------------------------------------


@shows("MQTT-4.3.1-1", "MQTT-3.3.1-2", "MQTT-2.2.1-2")
def test_quality_0_comes_without_dup_and_packet_id(case: Case) -> None:
    publisher, subscriber = case.pair((case.topic(), 2))
    publisher.send(b"\x38" + publish(case.topic(), b"x")[1:])  # DUP at QoS 0 is the client's error
    publisher = case.connect("q")
    publisher.send_message(case.topic(), b"y", qos=0)
    message = subscriber.message()
    if message.body == b"x":  # the server did not mind
        assert (message.qos, message.duplicate) == (0, False)
        message = subscriber.message()
    assert (message.qos, message.duplicate, message.body) == (0, False, b"y")


@shows("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.2-2", "MQTT-4.3.3-1", "MQTT-4.3.3-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_in_flight_have_packet_ids_of_their_own(case: Case, qos: int) -> None:
    subscriber = stored_for(case, qos, b"1", b"2", b"3")
    messages = [subscriber.message(acknowledged=False) for _ in range(3)]
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert len({message.packet_id for message in messages}) == 3
    assert not any(message.duplicate for message in messages)


@shows("MQTT-4.3.2-3", "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-3.3.1-3")
def test_quality_1_comes_again_until_puback(case: Case) -> None:
    first = stored_for(case, 1, b"x").message(acknowledged=False)
    assert not first.duplicate
    for _ in range(2):
        subscriber = again(case)
        message = subscriber.message(acknowledged=False)
        assert (message.body, message.packet_id) == (b"x", first.packet_id)
        assert (message.qos, message.duplicate) == (1, True)
    subscriber.send(puback(message.packet_id))
    subscriber.nothing()
    subscriber.leave()
    again(case).nothing()


@shows("MQTT-4.3.3-3", "MQTT-4.4.0-1", "MQTT-3.3.1-1")
def test_quality_2_comes_again_until_pubrec(case: Case) -> None:
    first = stored_for(case, 2, b"x").message(acknowledged=False)
    assert not first.duplicate
    message = again(case).message(acknowledged=False)
    assert (message.body, message.packet_id) == (b"x", first.packet_id)
    assert (message.qos, message.duplicate) == (2, True)


@shows("MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1", "MQTT-2.2.1-5")
@shows("MQTT-3.6.2-1")
def test_after_pubrec_only_pubrel_comes_again(case: Case) -> None:
    subscriber = stored_for(case, 2, b"x")
    packet_id = subscriber.message(acknowledged=False).packet_id
    subscriber.send(pubrec(packet_id))
    for _ in range(2):
        found = subscriber.read()
        assert (found.kind, found.packet_id, found.reason) == (Kind.PUBREL, packet_id, 0)
        subscriber.nothing()
        subscriber.vanish()
        subscriber = again(case)
    assert subscriber.read().kind == Kind.PUBREL
    subscriber.send(pubcomp(packet_id))
    subscriber.nothing()
    subscriber.leave()
    again(case).nothing()


@shows("MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_comes_again_on_the_same_connection(case: Case, qos: int) -> None:
    subscriber = stored_for(case, qos, b"x")
    message = subscriber.message(acknowledged=False)
    if qos == 2:
        subscriber.send(pubrec(message.packet_id))
        assert subscriber.read().kind == Kind.PUBREL
    subscriber.silent(0.7)


@shows("MQTT-4.4.0-1", "MQTT-4.6.0-5")
def test_what_comes_again_keeps_its_order(case: Case) -> None:
    bodies = [b"%d" % number for number in range(6)]
    subscriber = stored_for(case, 1, *bodies)
    first = [subscriber.message(acknowledged=False) for _ in bodies]
    subscriber = again(case)
    found = [subscriber.message() for _ in bodies]
    assert [one.body for one in found] == bodies
    assert [one.packet_id for one in found] == [one.packet_id for one in first]
    subscriber.nothing()


@shows("MQTT-4.4.0-2", "MQTT-4.3.3-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_counts_as_acknowledged(case: Case, qos: int) -> None:
    subscriber = stored_for(case, qos, b"x")
    message = subscriber.message(acknowledged=False)
    refuse = puback if qos == 1 else pubrec
    subscriber.send(refuse(message.packet_id, R.UNSPECIFIED))
    subscriber.nothing()  # no PUBREL either
    subscriber.vanish()
    again(case).nothing()


@shows("MQTT-4.3.3-4", "MQTT-3.6.2-1")
def test_pubrec_for_an_unknown_packet_id(case: Case) -> None:
    """PUBREL says that there is none, or the server takes it for a protocol error."""
    client = case.connect()
    client.send(pubrec(4711))
    found = client.read()
    if found.kind == Kind.DISCONNECT:
        assert found.reason == R.PROTOCOL_ERROR
        return
    assert (found.kind, found.packet_id) == (Kind.PUBREL, 4711)
    assert found.reason in (R.UNKNOWN_ID, R.SUCCESS)
    client.nothing()


@shows("MQTT-4.3.3-7")
def test_a_message_that_was_sent_does_not_expire(case: Case) -> None:
    subscriber = case.connect("s", props=STAYS)
    subscriber.follow((case.topic(), 2))
    publisher = case.connect("p")
    publisher.send_message(case.topic(), b"x", qos=2, props=((P.MESSAGE_EXPIRY, 1),))
    first = subscriber.message(acknowledged=False)
    subscriber.vanish()
    publisher.silent(1.5)
    message = again(case).message(acknowledged=False)
    assert (message.body, message.packet_id) == (b"x", first.packet_id)


# --- sizes and flags -----------------------------------------------------------------------------


@shows("MQTT-3.1.2-24", "MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.5.2-2", "MQTT-3.5.2-3")
@shows("MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.7.2-2", "MQTT-3.7.2-3", "MQTT-3.9.2-1")
@shows("MQTT-3.9.2-2", "MQTT-3.11.2-1", "MQTT-3.11.2-2", "MQTT-3.14.2-3", "MQTT-3.14.2-4")
def test_no_answer_is_made_too_large(case: Case) -> None:
    """With the smallest limit that still lets CONNACK through, whatever goes wrong."""
    limit = case.connect("probe").connack.size
    client = case.connect(props=[(P.PACKET_MAX, limit)])
    client.send(
        wire.subscribe(1, (case.topic("#"), 2), ("$conformance/x", 1)),
        wire.unsubscribe(2, case.topic("never"), case.topic("no")),
        publish(case.topic("none", "x" * 30), qos=1, packet_id=3),
        publish(case.topic("none", "x" * 30), qos=2, packet_id=4),
        pubrel(4711),
    )
    answers = [client.read() for _ in range(5)]
    assert sorted(answer.kind for answer in answers) == [
        Kind.PUBACK, Kind.PUBREC, Kind.PUBCOMP, Kind.SUBACK, Kind.UNSUBACK,
    ]  # fmt: skip
    assert max(answer.size for answer in answers) <= limit
    client.send(pubrec(4711))
    found = client.read()
    assert found.size <= limit
    if found.kind == Kind.PUBREL:
        client.send(wire.connect(client.client_id))
        assert client.expect_error(R.PROTOCOL_ERROR).size <= limit


@shows("MQTT-3.6.1-1", "MQTT-2.1.3-1")
@pytest.mark.parametrize("flags", [0, 1, 3, 6, 15])
def test_pubrel_with_other_flags_closes(case: Case, flags: int) -> None:
    client = case.connect()
    client.send(publish(case.topic(), qos=2, packet_id=1))
    assert client.read().kind == Kind.PUBREC
    client.send(bytes([0x60 | flags]) + pubrel(1)[1:])
    client.expect_error(R.MALFORMED)


@shows("MQTT-2.1.3-1", "MQTT-4.13.1-1")
@pytest.mark.parametrize("first_byte", [0x42, 0x52, 0x72])
def test_other_acknowledgements_with_flags_close(case: Case, first_byte: int) -> None:
    client = case.connect()
    client.send(bytes([first_byte]) + puback(1)[1:])
    client.expect_error(R.MALFORMED)


@shows("MQTT-4.13.1-1", "MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1")
@pytest.mark.parametrize("made", [puback, pubrec, pubrel, pubcomp])
def test_a_property_that_an_acknowledgement_does_not_have_closes(case: Case, made: object) -> None:
    client = case.connect()
    assert callable(made)
    client.send(made(1, 0, [(P.CONTENT_TYPE, "x")]))
    client.expect_error(R.MALFORMED, R.PROTOCOL_ERROR)


@shows("MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.6.2-1", "MQTT-3.7.2-1")
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (puback, 0x92),
        (puback, 0x04),
        (pubrec, 0x92),
        (pubrec, 0xFF),
        (pubrel, 0x10),
        (pubrel, 0x80),
        (pubcomp, 0x10),
        (pubcomp, 0x97),
    ],
)
def test_a_reason_of_another_acknowledgement_closes(
    case: Case, made: Callable[..., bytes], reason: int
) -> None:
    client = case.connect()
    client.send(made(1, reason))
    client.expect_error(R.MALFORMED, R.PROTOCOL_ERROR)


@shows("MQTT-3.6.2-1", "MQTT-3.7.2-1")
def test_an_unknown_packet_id_may_be_the_reason(case: Case) -> None:
    """PUBREL and PUBCOMP have a reason for it, which a server takes."""
    client = case.connect()
    client.send(pubrel(9, R.UNKNOWN_ID))
    found = client.read()
    assert (found.kind, found.packet_id) == (Kind.PUBCOMP, 9)
    client.nothing()
