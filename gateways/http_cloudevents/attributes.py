"""The attributes of a CloudEvent: names, value rules, and the header form of a value.

Rules of this file:

* A value is held as its canonical string (CloudEvents 1.0.2, part 3.1). Nothing is normalised:
  `time` keeps its nanoseconds, a URI keeps its spelling.
* It is strict where the specification says MUST, because what is stored here is read by every
  other protocol. It never repairs a value.
* Every error names the attribute and says what to send.

The header form (HTTP protocol binding 3.1.3.2): printable ASCII without space, double quote and
percent stands for itself, everything else is percent-encoded UTF-8. Old senders put values in
double quotes, so a quoted value is unquoted first, then one round of percent-decoding follows. The
official SDKs send a double quote as it is: where quotes do not pair, each stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from polymq.gateways.http_cloudevents.errors import BadEvent

REQUIRED: Final = ("specversion", "id", "source", "type")
DELIVERY_TIME: Final = "deliverattime"
"""Our extension: when the event is to be delivered."""
EXPIRY_TIME: Final = "expirytime"
"""The extension of that name: when nobody wants the event any more."""
OPTIONAL: Final = ("datacontenttype", "dataschema", "subject", "time")

NAME: Final = re.compile(r"[a-z0-9]+")
"""Lower-case letters and digits. More than 20 characters is only discouraged."""

FORBIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)
"""Control characters, lone surrogates and noncharacters: not part of the type String."""

_URI: Final = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]++|%[0-9A-Fa-f]{2})++")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_FIRST_COLON: Final = re.compile(r"[^/?#:]*:")
_TIME: Final = re.compile(
    r"(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)"
    r"(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
"""A leap second is legal (RFC 3339 5.6); it is kept as it is."""
_NO_YEAR: Final = "0000"
"""Matches RFC 3339, but common calendars begin with the year 1: most SDKs cannot read it."""
_MEDIA_TYPE: Final = re.compile(
    r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+/[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*(?:;[\t\x20-\x7e]*)?"
)
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_name(name: str) -> None:
    """Raise BadEvent unless `name` may be the name of an attribute."""
    if NAME.fullmatch(name) is None:
        raise BadEvent(
            printable(name), "attribute names are lower-case letters a-z and digits 0-9 only"
        )
    if name == "data":
        raise BadEvent("data", "is not an attribute; send the data as the body")


def check_value(name: str, value: str) -> None:
    """Raise BadEvent unless `value` may be the value of the attribute `name`."""
    found = FORBIDDEN.search(value)
    if found is not None:
        raise BadEvent(
            name,
            f"holds U+{ord(found.group()):04X}, which CloudEvents strings exclude "
            "(control characters, noncharacters, lone surrogates); remove it",
        )
    check = CHECKS.get(name)
    if check is not None:
        check(name, value)


def check_required(attributes: Mapping[str, str]) -> None:
    """Raise BadEvent if one of the four required attributes is missing."""
    for name in REQUIRED:
        if name not in attributes:
            raise BadEvent(name, f"is missing; every CloudEvent has {', '.join(REQUIRED)}")


def _check_version(name: str, value: str) -> None:
    if value != "1.0":
        raise BadEvent(name, f"is {printable(value)!r}; this broker speaks 1.0")


def _check_not_empty(name: str, value: str) -> None:
    if not value:
        raise BadEvent(name, "is empty; give it a value or leave it out")


def _check_uri_reference(name: str, value: str) -> None:
    _check_not_empty(name, value)
    if _URI.fullmatch(value) is None or value.count("#") > 1:
        raise BadEvent(
            name, f"{printable(value)!r} is not a URI-reference (RFC 3986); percent-encode it"
        )
    if _FIRST_COLON.match(value) and not _SCHEME.match(value):
        raise BadEvent(
            name,
            f"{printable(value)!r} is not a URI-reference: there is no scheme before the first "
            "colon; begin a relative reference with './' or '/'",
        )


def _check_uri(name: str, value: str) -> None:
    _check_uri_reference(name, value)
    if not _SCHEME.match(value):
        raise BadEvent(name, f"{printable(value)!r} is not an absolute URI; begin it with a scheme")


def _check_time(name: str, value: str) -> None:
    found = _TIME.fullmatch(value)
    if found is not None:
        year, month, day = map(int, found.groups())
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        day_max = 28 if month == 2 and not leap else _MONTH_DAYS[month - 1]
        if found.group(1) != _NO_YEAR and day <= day_max:
            return
    raise BadEvent(
        name,
        f"{printable(value)!r} is not an RFC 3339 timestamp; send e.g. 2026-05-03T09:30:00.25Z",
    )


def _check_media_type(name: str, value: str) -> None:
    if _MEDIA_TYPE.fullmatch(value) is None:
        raise BadEvent(
            name, f"{printable(value)!r} is not a media type (RFC 2046); send e.g. application/json"
        )


CHECKS: Final[Mapping[str, Callable[[str, str], None]]] = {
    "specversion": _check_version,
    "id": _check_not_empty,
    "source": _check_uri_reference,
    "type": _check_not_empty,
    "datacontenttype": _check_media_type,
    "dataschema": _check_uri,
    "subject": _check_not_empty,
    "time": _check_time,
    "partitionkey": _check_not_empty,
    DELIVERY_TIME: _check_time,
    EXPIRY_TIME: _check_time,
}
"""What a value has to be beyond a string. Enough for values known to be printable ASCII."""


def time_ms(value: str) -> int:
    """A checked time (RFC 3339) in ms since the epoch. A leap second counts as the one before."""
    text = value.upper()
    if text[17:19] == "60":
        text = f"{text[:17]}59{text[19:]}"
    return int(datetime.fromisoformat(text).timestamp() * 1000)


# --- media types ------------------------------------------------------------------------------


def media_type(content_type: str) -> str:
    """The media type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether data of this type is JSON: subtype `json` or `*+json`, any main type."""
    subtype = media_type(content_type).rpartition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


_CHARSET: Final = re.compile(r';[ \t]*charset[ \t]*=[ \t]*"?([^\s;"]+)"?', re.IGNORECASE)
_CODECS: Final[Mapping[str, str]] = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin1": "latin-1",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}
"""The charsets that text is converted in. Short on purpose: a codec named by the network must not
reach Python's registry, which holds zip and bz2 among them."""


def charset_codec(content_type: str) -> str | None:
    """The codec for text of this type; UTF-8 where it names none; None for an unknown charset."""
    found = _CHARSET.search(content_type)
    return "utf-8" if found is None else _CODECS.get(found.group(1).lower())


# --- header values ----------------------------------------------------------------------------

_PLAIN_HEADER: Final = re.compile(rb"[\x20!#$&-~]*")
"""Values that need neither unquoting nor percent-decoding."""
_PLAIN_VALUE: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_BAD_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def encode_header_value(value: str) -> str:
    """The header form of an attribute value. Always printable ASCII."""
    return value if is_plain_header_value(value) else quote(value, safe=_SAFE)


def is_plain_header_value(value: str) -> bool:
    """Whether the value is its own header form: nothing in it is percent-encoded."""
    return _PLAIN_VALUE.fullmatch(value) is not None


def decode_header_value(name: str, raw: bytes) -> str:
    """The attribute value of a header.

    Args:
        name: the attribute, for the error.
        raw: the header's value as it came, without surrounding white space.

    Raises:
        BadEvent: a `%` without two hex digits, or bytes that are no UTF-8.
    """
    if _PLAIN_HEADER.fullmatch(raw):
        return raw.decode("ascii")
    if b'"' in raw and b'"' not in _QUOTED.sub(b"", raw):
        raw = _QUOTED.sub(lambda found: _ESCAPED.sub(rb"\1", found.group(1)), raw)
    if _BAD_PERCENT.search(raw):
        raise BadEvent(name, "has a '%' without two hex digits; percent-encode it as %25")
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise BadEvent(name, "is not UTF-8 after percent-decoding") from None


def printable(text: str) -> str:
    """Foreign text for an error or a log line: short, and without characters that break it."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in short)
