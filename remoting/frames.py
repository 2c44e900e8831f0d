"""Frames: bytes to commands and back.

    int32 length | int32 (serialize type << 24 | header size) | header | body

`length` counts everything behind itself. The header is JSON or RocketMQ's own binary form; a
peer may mix them frame by frame, and an answer uses the form of its question.

Rules:

* Nothing here keeps state. `take_frame` looks at a range of a buffer and says how far it used it.
* Every size is checked against the bytes that are there and against a limit before it is used;
  sizes are judged as soon as the first eight bytes are in, so that a peer of another protocol is
  told off at once instead of being waited for.
* Values of `extFields` are text. Some clients send JSON numbers and booleans there: they become
  the text that Java would have sent (`true`, not `True`).
* The signed short of a binary header cannot hold the codes above 200,000 (POP and its kin).
  Clients truncate them; the six that can arrive are mapped back.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from polymq.remoting.codes import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGES,
    OUR_LANGUAGE,
    OUR_VERSION,
    SerializeType,
)
from polymq.remoting.errors import LocalProtocolError, RemoteProtocolError

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's own bound (`frameMaxLength`), on what follows the length word."""
ANSWER_BYTES_MAX: Final = 144 * 1024 * 1024
"""The same for answers with records, and for what our client takes: messages that came by other
protocols are larger, and a pull is answered with at least one. Java clients take 16 MiB, unless the
system property `com.rocketmq.remoting.frameMaxLength` says more."""
HEADER_BYTES_MAX: Final = 256 * 1024
"""Properties travel in the header: 32,767 bytes, each at most six as a JSON escape. RocketMQ has
no bound of its own here but the 24 bits of the size."""
FIELDS_COUNT_MAX: Final = 256
"""Entries of extFields. The longest header of RocketMQ has about thirty."""

PREFIX: Final = struct.Struct(">iI")
_HEADER_SIZE_MASK: Final = 0x00FF_FFFF
_BINARY_FIXED: Final = struct.Struct(">hBhii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1

_WIDE_CODES: Final = frozenset((*range(200_050, 200_057), 200_151))
_FROM_SHORT: Final = {code & 0xFFFF: code for code in _WIDE_CODES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One request or response, as it stands on the wire."""

    code: int
    opaque: int
    """Chosen by who asks; the answer repeats it. Each direction counts for itself."""
    flag: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    """`extFields`: the typed header of the code (`headers.py`), as text."""
    remark: str | None = None
    body: bytes = b""
    language: str = OUR_LANGUAGE
    version: int = OUR_VERSION
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)


class _JsonHeader(msgspec.Struct):
    """What we read of a JSON header; unknown keys are ignored."""

    code: int
    opaque: int
    flag: int = 0
    version: int = 0
    language: str | int = "OTHER"
    remark: str | None = None
    extFields: dict[str, Any] | None = None  # noqa: N815  (the wire's name)


_JSON_DECODER: Final = msgspec.json.Decoder(_JsonHeader, strict=False)
_JSON_ENCODER: Final = msgspec.json.Encoder()


# --- reading ----------------------------------------------------------------------------------


def take_frame(
    buffer: bytes | bytearray | memoryview,
    start: int,
    end: int,
    bytes_max: int = FRAME_BYTES_MAX,
) -> tuple[Command, int] | None:
    """The frame that begins at `start`, and where it ends; None when bytes are missing.

    Args:
        bytes_max: how large it may be.

    Raises:
        RemoteProtocolError: no legal frame begins with these bytes. Close the connection.
    """
    if end - start < PREFIX.size:
        return None
    length, marked = PREFIX.unpack_from(buffer, start)
    header_size = marked & _HEADER_SIZE_MASK
    form = marked >> 24
    if not _INT.size <= length <= bytes_max:
        raise RemoteProtocolError(
            f"frame of {length} bytes: {_INT.size} to {bytes_max} are allowed"
        )
    if form > SerializeType.ROCKETMQ:
        raise RemoteProtocolError(f"header form {form} is unknown")
    if header_size > HEADER_BYTES_MAX:
        raise RemoteProtocolError(f"header of {header_size} bytes: {HEADER_BYTES_MAX} are allowed")
    if header_size > length - _INT.size:
        raise RemoteProtocolError(f"header of {header_size} bytes in a frame of {length}")
    frame_end = start + _INT.size + length
    if frame_end > end:
        return None
    header_start = start + PREFIX.size
    header_end = header_start + header_size
    header = bytes(memoryview(buffer)[header_start:header_end])
    body = bytes(memoryview(buffer)[header_end:frame_end])
    if form == SerializeType.JSON:
        return _read_json(header, body), frame_end
    return _read_binary(header, body), frame_end


def _read_json(header: bytes, body: bytes) -> Command:
    try:
        read = _JSON_DECODER.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"JSON header: {error}") from error
    for number in (read.code, read.opaque, read.flag, read.version):
        if not _INT_MIN <= number <= _INT_MAX:
            raise RemoteProtocolError(f"JSON header: {number} is not a 32-bit number")
    fields = read.extFields or {}
    if len(fields) > FIELDS_COUNT_MAX:
        raise RemoteProtocolError(f"{len(fields)} extFields: {FIELDS_COUNT_MAX} are allowed")
    return Command(
        code=read.code,
        opaque=read.opaque,
        flag=read.flag,
        fields={name: text(value) for name, value in fields.items() if value is not None},
        remark=read.remark,
        body=body,
        language=_language(read.language),
        version=read.version,
        serialize_type=SerializeType.JSON,
    )


def text(value: Any) -> str:
    """A JSON value as the text that a Java client would have sent for it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return _JSON_ENCODER.encode(value).decode()


def _language(value: str | int) -> str:
    if isinstance(value, int):
        return LANGUAGES[value] if 0 <= value < len(LANGUAGES) else "OTHER"
    return value if value in LANGUAGES else "OTHER"


def _read_binary(header: bytes, body: bytes) -> Command:
    try:
        return _read_binary_checked(header, body)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header: {error}") from error


def _read_binary_checked(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag = _BINARY_FIXED.unpack_from(header)
    remark, at = _sized(header, _BINARY_FIXED.size, _INT)
    block, at = _sized(header, at, _INT)
    if at != len(header):
        raise RemoteProtocolError(f"binary header: {len(header) - at} bytes too many")
    fields: dict[str, str] = {}
    at = 0
    while at < len(block):
        name, at = _sized(block, at, _SHORT)
        value, at = _sized(block, at, _INT)
        if value:  # text of no length stands for null, and null for absence
            fields[name.decode()] = value.decode()
        if len(fields) > FIELDS_COUNT_MAX:
            raise RemoteProtocolError(f"more than {FIELDS_COUNT_MAX} extFields")
    return Command(
        code=_FROM_SHORT.get(code & 0xFFFF, code),
        opaque=opaque,
        flag=flag,
        fields=fields,
        remark=remark.decode() if remark else None,
        body=body,
        language=_language(language),
        version=version,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _sized(block: bytes, at: int, size_word: struct.Struct) -> tuple[bytes, int]:
    (size,) = size_word.unpack_from(block, at)
    start = at + size_word.size
    if not 0 <= size <= len(block) - start:
        raise RemoteProtocolError(
            f"binary header: {size} bytes promised, {len(block) - start} there"
        )
    return block[start : start + size], start + size


# --- writing ----------------------------------------------------------------------------------


def encode_frame(command: Command) -> bytes:
    """The command as one frame."""
    return encode_head(command, len(command.body)) + command.body


def encode_head(command: Command, body_size: int, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Everything before the body, for bodies that are sent from where they lie.

    Args:
        bytes_max: how large the frame may be.

    Raises:
        LocalProtocolError: the command does not fit the protocol.
    """
    if command.serialize_type == SerializeType.JSON:
        header = _write_json(command)
    else:
        header = _write_binary(command)
    length = _INT.size + len(header) + body_size
    if len(header) > HEADER_BYTES_MAX or length > bytes_max:
        raise LocalProtocolError(f"frame of {length} bytes, header {len(header)}: too large")
    return PREFIX.pack(length, command.serialize_type << 24 | len(header)) + header


def _write_json(command: Command) -> bytes:
    header: dict[str, Any] = {
        "code": command.code,
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "serializeTypeCurrentRPC": "JSON",
    }
    if command.remark is not None:
        header["remark"] = command.remark
    # Always there: Java clients look into extFields of some error answers without a question.
    header["extFields"] = command.fields
    try:
        return _JSON_ENCODER.encode(header)
    except (UnicodeEncodeError, TypeError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"JSON header: {error}") from error


def _write_binary(command: Command) -> bytes:
    code = command.code
    if code in _WIDE_CODES:
        code &= 0xFFFF
    try:
        remark = (command.remark or "").encode()
        block = b"".join(
            _SHORT.pack(len(name)) + name + _INT.pack(len(value)) + value
            for name, value in ((n.encode(), v.encode()) for n, v in command.fields.items())
            if value
        )
        fixed = _BINARY_FIXED.pack(
            code,
            LANGUAGES.index(command.language),
            command.version,
            command.opaque,
            command.flag,
        )
    except (struct.error, UnicodeEncodeError, ValueError) as error:
        raise LocalProtocolError(f"binary header: {error}") from error
    return fixed + _INT.pack(len(remark)) + remark + _INT.pack(len(block)) + block
