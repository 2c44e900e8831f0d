"""Files of pre-shared keys: what a line is, and what is no key. With TLS they are in
`interop_tests/test_mqtt_preshared_keys.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.errors import ExitCode, Failure
from polymq.net.preshared import is_supported
from polymq.preshared_keys import KeyFile, make_preshared, read_keys

KEY = "00112233445566778899aabbccddeeff"


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = folder / "psk"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def test_the_lines_of_a_file(tmp_path: Path) -> None:
    """An identity ends at the first colon, so it has none, and may have all else."""
    text = f"# comment\n\nsensor7:{KEY}\r\nCN=a,O=b:{KEY.upper()} \nzähler:{KEY * 2}\n"
    key = bytes.fromhex(KEY)
    assert read_keys(written(tmp_path, text)) == {
        "sensor7": key,
        "CN=a,O=b": key,
        "zähler": key * 2,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n", "line 1: there is no colon between an identity and a key"),
        (f":{KEY}\n", "line 1: an identity has 1 to 128 bytes"),
        (f"{'a' * 129}:{KEY}\n", "line 1: an identity has 1 to 128 bytes"),
        ("a:\n", "line 1: the key has 0 bytes: make it 16 to 256"),
        (f"#\na:{KEY[2:]}\n", "line 2: the key has 15 bytes: make it 16 to 256"),
        (f"a:{KEY * 17}\n", "line 1: the key has 272 bytes: make it 16 to 256"),
        ("a:0x11\n", "line 1: the key is not in hexadecimal digits"),
        (f"a:{KEY}\na:{KEY}\n", "line 2: identity 'a' is there twice"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_key(tmp_path: Path, text: str | bytes, said: str) -> None:
    """The line is named, and its key is not shown."""
    with pytest.raises(Failure) as failed:
        read_keys(written(tmp_path, text))
    assert failed.value.code is ExitCode.USAGE
    assert said in str(failed.value)
    assert KEY not in str(failed.value)


def test_others_must_not_read_the_keys(tmp_path: Path) -> None:
    """As with the key of a certificate."""
    with pytest.raises(Failure, match="can be read by others: chmod 600"):
        read_keys(written(tmp_path, f"a:{KEY}\n", 0o604))
    with pytest.raises(Failure, match="cannot be read: No such file"):
        read_keys(str(tmp_path / "none"))


def test_each_connection_has_a_context_of_its_own(tmp_path: Path) -> None:
    """Or two clients that connect at the same time would be the same user."""
    file = KeyFile(written(tmp_path, f"a:{KEY}\n"))
    if not is_supported():
        with pytest.raises(Failure, match=r"needs Python 3\.13 or later"):
            make_preshared(file)
        return
    source = make_preshared(file)
    assert source() is not source()
