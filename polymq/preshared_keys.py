"""Pre-shared keys of an MQTT listener, from a file in mosquitto's form: `identity:key`, the key in
hexadecimal digits.

What is wrong with the file is said at the start, in one sentence, and the server does not start.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polymq.errors import ExitCode, Failure
from polymq.net.preshared import is_supported, preshared_context
from polymq.net.tls_source import TlsSource
from polymq.secret_file import SECRET_SIZE_MIN
from polymq.tls import others_read

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
IDENTITY_BYTES_MAX: Final = 128
KEY_BYTES_MAX: Final = 256
"""Of OpenSSL."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where the keys of a listener are.

    Attributes:
        hint: what clients are told before they name their identity.
    """

    path: str
    hint: str = ""


def make_preshared(file: KeyFile) -> TlsSource:
    """Contexts for new connections, with the keys that the file has now. Raises Failure: USAGE."""
    if not is_supported():
        raise Failure(
            ExitCode.USAGE,
            "tls_psk_file needs Python 3.13 or later with an OpenSSL that has pre-shared keys: "
            f"this is Python {platform.python_version()}",
        )
    keys = read_keys(file.path)
    return lambda: preshared_context(keys, file.hint)


def read_keys(path: str) -> dict[str, bytes]:
    """The keys in a file, by identity. Raises Failure: USAGE."""
    try:
        if others_read(path):
            raise _failed(path, f"can be read by others: chmod 600 {path}")
        if Path(path).stat().st_size > FILE_BYTES_MAX:
            raise _failed(path, f"has more than {FILE_BYTES_MAX} bytes")
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _failed(path, "is not UTF-8") from error
    except OSError as error:
        raise _failed(path, f"cannot be read: {error.strerror or error}") from error
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        identity, colon, digits = line.partition(":")
        why = _why_not(identity, colon, keys)
        try:
            key = bytes.fromhex(digits.strip())
        except ValueError:
            key, why = b"", why or "the key is not in hexadecimal digits"
        if not SECRET_SIZE_MIN <= len(key) <= KEY_BYTES_MAX:
            why = why or (
                f"the key has {len(key)} bytes: make it {SECRET_SIZE_MIN} to {KEY_BYTES_MAX}, for "
                "example by `openssl rand -hex 32`"
            )
        if why:
            raise _failed(path, f"line {number}: {why}")
        keys[identity] = key
    return keys


def _why_not(identity: str, colon: str, keys: dict[str, bytes]) -> str:
    if not colon:
        return "there is no colon between an identity and a key"
    if not 0 < len(identity.encode()) <= IDENTITY_BYTES_MAX:
        return f"an identity has 1 to {IDENTITY_BYTES_MAX} bytes"
    return f"identity {identity!r} is there twice" if identity in keys else ""


def _failed(path: str, text: str) -> Failure:
    return Failure(ExitCode.USAGE, f"tls_psk_file: {path} {text}")
