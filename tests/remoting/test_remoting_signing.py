"""Signatures of requests, against those of Apache's `AclClientRPCHook`."""

from __future__ import annotations

import base64

import pytest

from polymq.remoting.codes import SerializeType
from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.frames import Command, encode_frame, take_frame
from polymq.remoting.link import Link
from polymq.remoting.signing import Credentials, Signature, credentials_from, sign, signature_of
from polymq.remoting.steps import Address, Call

PLAIN = Credentials(access_key="PMQKEY1", secret_key="secret")
FIELDS = {"topic": "orders", "queueId": "3", "b": "lower", "B": "upper", "_x": "1"}

VECTORS = [  # made with rocketmq-acl 4.9.8; upper case comes before "_", and that before lower case
    (PLAIN, {}, b"", "pENAluTXpqeLl6grjcw1iQiaA08="),
    (PLAIN, FIELDS, b"", "PwUkOnS7imePEz7aOLElbi2RKio="),
    (PLAIN, FIELDS, "grüß".encode(), "9/qchOKK728Ce7IIo4ap/c3IEy0="),
    (
        Credentials(access_key="PMQKEY1", secret_key="sécret", security_token="token"),
        {**FIELDS, "i": "KEYS\x01kä1\x02", "e": ""},
        b"\x00\x01\xff",
        "xsAg4cNvh2SxmDe9Ap92GoY5imA=",
    ),
]


@pytest.mark.parametrize(("credentials", "fields", "body", "signature"), VECTORS)
def test_a_signature_is_that_of_apaches_client(
    credentials: Credentials, fields: dict[str, str], body: bytes, signature: str
) -> None:
    signed = sign(fields, body, credentials)
    assert signed["Signature"] == signature
    assert signed["AccessKey"] == credentials.access_key
    assert signed.get("SecurityToken") == credentials.security_token
    assert fields.items() <= signed.items()


def read(command: Command) -> Signature:
    frame = encode_frame(command)
    taken = take_frame(frame, 0, len(frame))
    assert taken is not None
    found = signature_of(taken[0])
    assert found is not None
    return found


@pytest.mark.parametrize("form", SerializeType)
@pytest.mark.parametrize(("credentials", "fields", "body", "signature"), VECTORS)
def test_what_was_signed_is_read_the_same_from_the_wire(
    form: SerializeType,
    credentials: Credentials,
    fields: dict[str, str],
    body: bytes,
    signature: str,
) -> None:
    """In JSON and in binary headers, where a field of no length is none at all."""
    sent = Command(
        code=310,
        opaque=1,
        fields=sign(fields, body, credentials),
        body=body,
        serialize_type=form,
    )
    found = read(sent)
    assert found.access_key == credentials.access_key
    assert found.digest == base64.b64decode(signature)
    again = sign(fields, body, credentials)
    del again["Signature"]
    assert found.content == "".join(again[name] for name in sorted(again)).encode() + body


def test_values_that_are_no_text_count_as_java_writes_them() -> None:
    header = (
        b'{"code":11,"opaque":1,"version":121,"extFields":'
        b'{"a":true,"b":17,"c":null,"AccessKey":"K","Signature":"AAAA"}}'
    )
    frame = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    taken = take_frame(frame, 0, len(frame))
    assert taken is not None
    assert signature_of(taken[0]) == Signature(
        access_key="K", digest=b"\x00\x00\x00", content=b"Ktrue17"
    )


@pytest.mark.parametrize("late", ["__ZONE_NAME", "__ZONE_MODE"])
def test_what_java_adds_behind_its_signature_is_left_out(late: str) -> None:
    signed = sign(FIELDS, b"x", PLAIN)
    before = read(Command(code=11, opaque=1, fields=signed, body=b"x"))
    after = read(Command(code=11, opaque=1, fields={**signed, late: "z"}, body=b"x"))
    assert before == after


@pytest.mark.parametrize(("version", "counts"), [(399, False), (401, True), (479, True)])
def test_the_mark_of_a_query_counts_from_4_9_4_on(version: int, counts: bool) -> None:
    fields = {"AccessKey": "K", "Signature": "AAAA", "_UNIQUE_KEY_QUERY": "true"}
    found = read(Command(code=12, opaque=1, fields=fields, version=version))
    assert found.content == (b"Ktrue" if counts else b"K")


@pytest.mark.parametrize("signature", ["", "!", "AAA", "\u00e4", "A" * 100_000])
def test_a_signature_that_is_none_is_an_empty_or_wrong_digest(signature: str) -> None:
    fields = {"AccessKey": "K", "Signature": signature}
    assert len(read(Command(code=11, opaque=1, fields=fields)).digest) != 20
    assert len(read(Command(code=11, opaque=1, fields={"AccessKey": "K"})).digest) == 0


def test_a_request_that_names_no_key_is_not_signed() -> None:
    assert signature_of(Command(code=11, opaque=1, fields={"Signature": "AAAA"})) is None


def test_secrets_are_in_no_trace() -> None:
    credentials = Credentials(access_key="K", secret_key="very", security_token="secret")
    assert repr(credentials) == "Credentials(access_key='K')"


def test_a_client_with_credentials_signs_what_it_asks() -> None:
    link: Link[str] = Link(Address("h", 1), credentials=PLAIN)
    call = Call(address=Address("h", 1), code=310, fields=FIELDS, seconds=1.0, body=b"x")
    _, data = link.ask(call, "waiter")
    events, _ = Connection().receive(data, 0, len(data))
    (received,) = events
    assert isinstance(received, RequestReceived)
    assert received.command.fields == sign(FIELDS, b"x", PLAIN)
    assert call.fields == FIELDS  # a call that is made again is signed again


@pytest.mark.parametrize(("key", "secret"), [("k", None), (None, "s"), ("k", ""), ("", "s")])
def test_a_key_without_a_secret_is_a_mistake(key: str | None, secret: str | None) -> None:
    with pytest.raises(LocalProtocolError, match="used together"):
        credentials_from(key, secret)


def test_no_options_are_no_credentials() -> None:
    assert credentials_from(None, "") is None
    assert credentials_from("k", "s") == Credentials(access_key="k", secret_key="s")
