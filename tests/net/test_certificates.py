"""The names in certificates, compared with what openssl says of the same files."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests.authority import Authority
from polymq.net.certificates import names_of

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "interop_tests" / "certificates" / "client.pem"


def der_of(path: Path) -> bytes:
    text = path.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) :])


def openssl_subject(path: Path) -> str:
    command = ["openssl", "x509", "-in", str(path), "-noout", "-subject"]
    options = ["-nameopt", "RFC2253,-esc_msb,utf8"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    return done.stdout.removeprefix("subject=").rstrip("\n")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
@pytest.mark.parametrize(
    "subject",
    [
        "/CN=sensor7",
        "/O=Plant, Ltd/CN=sensor\\+7",
        "/DC=example/DC=plant/OU=Floor \\\\2/CN=#1",
        '/CN=\u00fcber <x>;"y"',
        "/C=DE/ST=Bavaria/L=Munich/O=a\\=b/CN= blank ",
    ],
)
def test_subjects_are_as_openssl_writes_them(tmp_path: Path, subject: str) -> None:
    authority = Authority(tmp_path / "ca")
    authority_policy = authority.directory / "openssl.cnf"
    text = authority_policy.read_text()
    kinds = ("domainComponent", "organizationalUnitName", "countryName", "stateOrProvinceName")
    more = "".join(f"{kind} = optional\n" for kind in (*kinds, "localityName"))
    authority_policy.write_text(text.replace("[any]\n", f"[any]\n{more}"))
    path, _ = authority.issue("c", subject, "DNS:one.example,email:a@b.example,DNS:two.example")
    names = names_of(der_of(path))
    assert names.subject == openssl_subject(path)
    assert names.dns_names == ("one.example", "two.example")
    assert names.mail_addresses == ("a@b.example",)
    assert len(names.common_names) == 1


def test_a_certificate_cut_or_changed_is_an_error_or_names() -> None:
    """Nothing but ValueError leaves, whatever the bytes are."""
    whole = der_of(CLIENT)
    assert names_of(whole).common_names
    for size in range(len(whole)):
        with pytest.raises(ValueError):
            names_of(whole[:size])


def test_an_empty_element_is_malformed() -> None:
    """What has to have something in it has nothing: the size of the extensions became 0."""
    changed = bytearray(der_of(CLIENT))
    changed[210] = 0
    with pytest.raises(ValueError, match="empty"):
        names_of(bytes(changed))


@given(at=st.integers(0, 500), byte=st.integers(0, 255))
def test_a_certificate_with_a_changed_byte(at: int, byte: int) -> None:
    changed = bytearray(der_of(CLIENT))
    changed[at % len(changed)] = byte
    try:
        names = names_of(bytes(changed))
    except ValueError:
        return
    assert "\0" not in "".join((*names.common_names, *names.dns_names))
