"""Frames: what real clients send, byte for byte, and what nobody may send."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.codes import LANGUAGES, SerializeType
from polymq.remoting.errors import LocalProtocolError, RemoteProtocolError
from polymq.remoting.frames import (
    FIELDS_COUNT_MAX,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    Command,
    encode_frame,
    take_frame,
)


def json_frame(header: Any, body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">ii", 4 + len(raw) + len(body), len(raw)) + raw + body


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def take_all(frame: bytes) -> Command:
    taken = take_frame(frame, 0, len(frame))
    assert taken is not None
    command, used = taken
    assert used == len(frame)
    return command


# --- what clients send ------------------------------------------------------------------------


def test_a_java_client_s_route_question() -> None:
    """As the official client writes it, serializeTypeCurrentRPC included."""
    frame = json_frame(
        b'{"code":105,"extFields":{"topic":"sensors"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":401}'
    )
    assert take_all(frame) == Command(
        code=105,
        opaque=7,
        fields={"topic": "sensors"},
        language="JAVA",
        version=401,
        serialize_type=SerializeType.JSON,
    )


def test_ali_ons_sends_numbers_and_booleans_as_field_values() -> None:
    """They become the text that Java would have sent; null means absent."""
    frame = json_frame(
        {
            "code": 11,
            "opaque": 1,
            "extFields": {"queueId": 3, "ok": True, "no": False, "x": None, "r": 0.5, "s": "t"},
        }
    )
    assert take_all(frame).fields == {
        "queueId": "3",
        "ok": "true",
        "no": "false",
        "r": "0.5",
        "s": "t",
    }


def test_unknown_header_keys_and_languages_are_ignored() -> None:
    frame = json_frame({"code": 1, "opaque": 2, "language": "COBOL", "future": {"a": [1]}})
    assert take_all(frame).language == "OTHER"


def test_a_binary_header_as_the_stock_benchmark_sends_it() -> None:
    """Code 105, language 0 (Java), version 401, opaque 9, no remark, one field."""
    fields = struct.pack(">h", 5) + b"topic" + struct.pack(">i", 2) + b"ab"
    header = struct.pack(">hBhii", 105, 0, 401, 9, 0) + struct.pack(">i", 0)
    header += struct.pack(">i", len(fields)) + fields
    assert take_all(binary_frame(header, b"body")) == Command(
        code=105,
        opaque=9,
        fields={"topic": "ab"},
        body=b"body",
        language="JAVA",
        version=401,
        serialize_type=SerializeType.ROCKETMQ,
    )


def test_text_of_no_length_in_a_binary_header_is_absent() -> None:
    fields = struct.pack(">h", 1) + b"a" + struct.pack(">i", 0)
    header = struct.pack(">hBhiii", 1, 3, 0, 1, 0, 0) + struct.pack(">i", len(fields)) + fields
    command = take_all(binary_frame(header))
    assert command.fields == {}
    assert command.remark is None


@pytest.mark.parametrize("code", [200_050, 200_053, 200_056, 200_151])
def test_codes_that_a_short_cannot_hold_come_back_whole(code: int) -> None:
    """Clients truncate POP's codes in binary headers (200050 becomes 3442)."""
    frame = encode_frame(Command(code=code, opaque=1, serialize_type=SerializeType.ROCKETMQ))
    assert struct.unpack_from(">h", frame, 8) == (code - 196_608,)
    assert take_all(frame).code == code


# --- both directions --------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
commands = st.builds(
    Command,
    code=st.integers(-(2**15), 2**15 - 1).filter(lambda code: not 3442 <= code <= 3543),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    fields=st.dictionaries(texts, texts.filter(bool), max_size=5),
    remark=st.none() | texts.filter(bool),
    body=st.binary(max_size=50),
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 2**15 - 1),
    serialize_type=st.sampled_from(SerializeType),
)


@given(commands)
def test_what_is_written_is_read_back(command: Command) -> None:
    assert take_all(encode_frame(command)) == command


@given(command=commands, data=st.data())
def test_a_frame_is_taken_only_when_it_is_whole(command: Command, data: st.DataObject) -> None:
    """Between other bytes, at any place of the buffer."""
    frame = encode_frame(command)
    cut = data.draw(st.integers(0, len(frame) - 1))
    buffer = b"??" + frame + b"??"
    assert take_frame(buffer, 2, 2 + cut) is None
    assert take_frame(buffer, 2, 2 + len(frame)) == (command, 2 + len(frame))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    """Never another exception."""
    for frame in (data, json_frame(data), binary_frame(data)):
        try:
            take_frame(frame, 0, len(frame))
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize("kind", list(SerializeType))
@given(position=st.integers(0, 200), value=st.integers(0, 255))
def test_a_damaged_frame_is_a_frame_or_a_protocol_error(
    kind: SerializeType, position: int, value: int
) -> None:
    frame = bytearray(
        encode_frame(
            Command(code=11, opaque=4, fields={"topic": "t", "n": "5"}, serialize_type=kind)
        )
    )
    frame[position % len(frame)] = value
    try:
        take_frame(bytes(frame), 0, len(frame))
    except RemoteProtocolError:
        pass


# --- what nobody may send ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (struct.pack(">ii", FRAME_BYTES_MAX + 1, 10), "allowed"),
        (struct.pack(">ii", 3, 0), "allowed"),
        (struct.pack(">ii", -1, 0), "allowed"),
        (struct.pack(">ii", 100, 97), "in a frame of"),
        (struct.pack(">ii", FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1), "header of"),
        (struct.pack(">iI", 100, 2 << 24 | 10), "form 2"),
        (b"GET / HTTP/1.1\r\n", "allowed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "allowed"),
        (b"AMQP\x00\x00\x09\x01", "allowed"),
    ],
)
def test_sizes_are_judged_before_the_frame_is_waited_for(start: bytes, why: str) -> None:
    """Eight bytes are enough to tell off a peer that speaks another protocol."""
    with pytest.raises(RemoteProtocolError, match=why):
        take_frame(start, 0, len(start))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"code":1}',
        b'{"code":"x","opaque":1}',
        b'{"code":1,"opaque":4294967296}',
        b'{"code":1,"opaque":1,"flag":99999999999999999999999}',
        b'{"code":1,"opaque":1,"extFields":[]}',
        b'{"code":1,"opaque":1,"remark":"\xff"}',
        json.dumps(
            {"code": 1, "opaque": 1, "extFields": {str(n): "" for n in range(FIELDS_COUNT_MAX + 1)}}
        ).encode(),
    ],
)
def test_a_json_header_that_is_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        take_all(json_frame(header))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        struct.pack(">hBhii", 1, 0, 0, 1, 0),
        struct.pack(">hBhiii", 1, 0, 0, 1, 0, 1000),
        struct.pack(">hBhiii", 1, 0, 0, 1, 0, -1),
        struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 5) + b"\x00\x09abc",
        struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 0) + b"rest",
        struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 1, 0)[:-4] + b"\xff" + struct.pack(">i", 0),
    ],
)
def test_a_binary_header_that_is_none(header: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        take_all(binary_frame(header))


@pytest.mark.parametrize("kind", list(SerializeType))
def test_what_does_not_fit_is_our_own_fault(kind: SerializeType) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(
            Command(code=0, opaque=0, remark="x" * (HEADER_BYTES_MAX + 1), serialize_type=kind)
        )
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(code=0, opaque=0, body=bytes(FRAME_BYTES_MAX), serialize_type=kind))
    with pytest.raises(LocalProtocolError):
        encode_frame(Command(code=0, opaque=0, remark="\udc80", serialize_type=kind))


def test_answers_always_carry_ext_fields() -> None:
    """Java looks into extFields of the codes 10, 11 and 12 without a question."""
    header = encode_frame(Command(code=11, opaque=1, flag=1))[8:]
    assert json.loads(header)["extFields"] == {}
