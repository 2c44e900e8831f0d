"""The names in a certificate (RFC 5280). Pure: DER in, text out.

Whether the certificate is valid is not asked here: the TLS handshake has verified it. A name with
U+0000 in it is refused, because it looks different to different readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

_SEQUENCE, _SET, _OBJECT_ID, _OCTETS = 0x30, 0x31, 0x06, 0x04
_VERSION, _EXTENSIONS, _MAIL, _DNS = 0xA0, 0xA3, 0x81, 0x82
_COMMON_NAME: Final = "2.5.4.3"
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_SHORT: Final = {
    _COMMON_NAME: "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.6": "C",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""RFC 4514, part 3. Other types are written as numbers, and their values in hexadecimal."""
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # TeletexString
    0x16: "ascii",  # IA5String
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset('",+;<>\\')


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Who a certificate is for.

    Attributes:
        subject: the whole subject as text (RFC 4514): `CN=sensor7,O=Plant`.
        common_names: those of the subject, in the certificate's order.
        dns_names, mail_addresses: of the subject's alternative names, in their order.
    """

    subject: str
    common_names: tuple[str, ...]
    dns_names: tuple[str, ...]
    mail_addresses: tuple[str, ...]


def names_of(der: bytes) -> Names:
    """The names in a certificate.

    Raises:
        ValueError: that is no certificate, or a name in it is malformed.
    """
    try:
        return _names_of(der)
    except IndexError as error:
        raise ValueError("it ends too early") from error


class HasExtraInfo(Protocol):
    """A transport of the loop."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""


def subject_of(transport: HasExtraInfo | None) -> str:
    """The subject of the certificate that the peer has shown, as text (RFC 4514); empty where there
    is none, or none that can be read."""
    own = None if transport is None else transport.get_extra_info("ssl_object")
    certificate = None if own is None else own.getpeercert(binary_form=True)
    if certificate is None:
        return ""
    try:
        return names_of(certificate).subject
    except ValueError:
        return ""


def _names_of(der: bytes) -> Names:
    [(kind, certificate)] = _elements(der)
    signed = _first(certificate)[1]
    fields = [field for field in _elements(signed) if field[0] != _VERSION]
    # Serial number, signature, issuer, validity, subject.
    relative = [list(_attributes(content)) for _, content in _elements(_only(fields[4], _SEQUENCE))]
    alternatives = list(_alternative_names(fields))
    if kind != _SEQUENCE:
        raise ValueError("it is not a sequence")
    return Names(
        subject=",".join("+".join(map(_written, names)) for names in reversed(relative)),
        common_names=tuple(
            _text(tag, value)
            for names in relative
            for name, tag, value in names
            if name == _COMMON_NAME
        ),
        dns_names=tuple(_text(0x16, value) for tag, value in alternatives if tag == _DNS),
        mail_addresses=tuple(_text(0x16, value) for tag, value in alternatives if tag == _MAIL),
    )


def _attributes(relative: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Type, kind and value of the parts of a relative name."""
    for _, pair in _elements(relative):
        (_, name), (tag, value) = _elements(pair)
        yield _number(name), tag, value


def _alternative_names(fields: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    for tag, content in fields:
        if tag != _EXTENSIONS:
            continue
        for _, extension in _elements(_only(_first(content), _SEQUENCE)):
            parts = list(_elements(extension))
            if _number(_only(parts[0], _OBJECT_ID)) == _ALTERNATIVE_NAMES:
                yield from _elements(_only(_first(_only(parts[-1], _OCTETS)), _SEQUENCE))


def _text(tag: int, value: bytes) -> str:
    encoding = _ENCODINGS.get(tag)
    if encoding is None:
        raise ValueError(f"a name in it is no text, but {tag:#04x}")
    text = value.decode(encoding)
    if "\0" in text:
        raise ValueError("a name in it has U+0000")
    return text


def _written(attribute: tuple[str, int, bytes]) -> str:
    """One part of a subject (RFC 4514, parts 2.3 and 2.4)."""
    name, tag, value = attribute
    short = _SHORT.get(name)
    if short is None or tag not in _ENCODINGS:
        return f"{short or name}=#{_encoded(tag, value).hex()}"
    text = _text(tag, value)
    written = "".join(f"\\{letter}" if letter in _ESCAPED else letter for letter in text)
    if text.startswith(("#", " ")):
        written = "\\" + written
    if text.endswith(" ") and len(text) > 1:
        written = written[:-1] + "\\ "
    return f"{short}={written}"


# --- DER (X.690) -----------------------------------------------------------------------------


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of the elements that follow each other. Raises ValueError, IndexError."""
    at = 0
    while at < len(der):
        tag, size, start = der[at], der[at + 1], at + 2
        if size & 0x80:
            count = size & 0x7F
            size, start = int.from_bytes(der[start : start + count], "big"), start + count
        if start + size > len(der):
            raise ValueError("it ends too early")
        yield tag, der[start : start + size]
        at = start + size


def _first(der: bytes) -> tuple[int, bytes]:
    """Tag and content of the first element. Raises ValueError, IndexError."""
    for element in _elements(der):
        return element
    raise ValueError("an element in it is empty")


def _only(element: tuple[int, bytes], tag: int) -> bytes:
    if element[0] != tag:
        raise ValueError(f"{tag:#04x} was expected, not {element[0]:#04x}")
    return element[1]


def _encoded(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def _number(content: bytes) -> str:
    """An object identifier with dots."""
    numbers, current = [], 0
    for byte in content:
        current = current << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(current)
            current = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
