"""What the program makes of the TLS settings, and what it says of files that are wrong."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from polymq.errors import ExitCode, Failure
from polymq.settings import NamesSettings, Settings, TlsSettings
from polymq.tls import chosen_tls, make_tls, names_tls, own_tls, validity, warn_of_dates

FILES = Path(__file__).parents[2] / "interop_tests" / "certificates"
SERVER, KEY, CA = (str(FILES / name) for name in ("server.pem", "server.key", "ca.pem"))


def test_without_a_certificate_there_is_no_tls() -> None:
    assert make_tls(TlsSettings()) is None


def test_a_context_for_a_listener() -> None:
    context = make_tls(TlsSettings(certificate=SERVER, key=KEY), protocols=("http/1.1",))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    context = make_tls(TlsSettings(certificate=SERVER, key=KEY, client_ca=CA))
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    optional = TlsSettings(
        certificate=SERVER, key=KEY, client_ca=CA, client_certificates="optional"
    )
    context = make_tls(optional)
    assert context is not None
    assert context.verify_mode is ssl.CERT_OPTIONAL


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"certificate": SERVER}, "tls.key is not set"),
        ({"key": KEY}, "tls.certificate is not set"),
        ({"client_ca": CA}, "tls.certificate is not set"),
        ({"certificate": "/no/none", "key": KEY}, "tls.certificate: .*none cannot be read"),
        ({"certificate": SERVER, "key": str(FILES)}, "tls.key: .* cannot be read"),
        ({"certificate": SERVER, "key": str(FILES / "client.key")}, "is not the key of"),
        ({"certificate": SERVER, "key": SERVER}, "can be read by others: chmod 600"),
        ({"certificate": KEY, "key": KEY}, "holds no certificate in PEM form"),
        ({"certificate": SERVER, "key": KEY, "client_ca": KEY}, "tls.client_ca: .* no cert"),
        ({"crl": CA}, "tls.certificate is not set"),
        ({"certificate": SERVER, "key": KEY, "crl": CA}, "tls.crl is set, but no client needs"),
        (
            {"certificate": SERVER, "key": KEY, "client_ca": CA, "crl": CA},
            "tls.crl: .* holds no certificate revocation lists",
        ),
        ({"certificate": SERVER, "key": KEY, "client_ca": "/no/x"}, "tls.client_ca: .*read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(settings: dict[str, str], text: str) -> None:
    with pytest.raises(Failure, match=text) as caught:
        make_tls(TlsSettings.model_validate(settings))
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("mode", "private"),
    [(0o600, True), (0o400, True), (0o640, False), (0o604, False), (0o644, False), (0o660, False)],
)
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int, private: bool) -> None:
    """Whoever has it can pass for the server. A key of root's may be readable for a group."""
    key = tmp_path / "server.key"
    shutil.copy(KEY, key)
    key.chmod(mode)
    root = key.stat().st_uid == 0
    settings = TlsSettings(certificate=SERVER, key=str(key))
    if private or (root and mode == 0o640):
        assert make_tls(settings) is not None
    else:
        with pytest.raises(Failure, match=f"chmod 600 {key}"):
            make_tls(settings)


def test_a_certificate_with_the_key_in_it_is_as_private_as_the_key(tmp_path: Path) -> None:
    """Many tools write both into one file, and a key of its own beside it hides nothing then."""
    both = tmp_path / "server.pem"
    both.write_bytes(Path(SERVER).read_bytes() + Path(KEY).read_bytes())
    both.chmod(0o644)
    settings = TlsSettings(certificate=str(both), key=KEY)
    with pytest.raises(Failure, match=f"tls.certificate: {both} holds a private key.*chmod 600"):
        make_tls(settings)
    both.chmod(0o600)
    assert make_tls(settings) is not None
    assert make_tls(TlsSettings(certificate=str(both), key=str(both))) is not None


def test_a_key_that_is_no_key_is_told(tmp_path: Path) -> None:
    """A certificate in its place, for example."""
    key = tmp_path / "server.key"
    shutil.copy(SERVER, key)
    key.chmod(0o600)
    with pytest.raises(Failure, match="cannot be used"):
        make_tls(TlsSettings(certificate=SERVER, key=str(key)))


def test_dates_are_read_and_told() -> None:
    begin, end = validity(Path(SERVER).read_text())
    assert (begin, end) == (datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC))
    said: list[str] = []
    for name, now in (
        ("server", datetime(2026, 1, 1, tzinfo=UTC)),
        ("server", datetime(2019, 12, 31, tzinfo=UTC)),
        ("expired", datetime(2026, 1, 1, tzinfo=UTC)),
        ("expired", datetime(2020, 12, 25, tzinfo=UTC)),
    ):
        settings = TlsSettings(certificate=str(FILES / f"{name}.pem"), key=KEY)
        warn_of_dates(settings, now, said.append)
    assert [text.split(" ")[3:5] for text in said] == [
        ["is", "not"],
        ["expired", "on"],
        ["expires", "on"],
    ]


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_broken_certificate_is_no_crash(cut: int) -> None:
    der = ssl.PEM_cert_to_DER_cert(Path(SERVER).read_text())
    with pytest.raises(ValueError):
        validity(ssl.DER_cert_to_PEM_cert(der[:cut]))


def test_a_broker_checks_the_names_and_authorities_of_its_name_servers() -> None:
    assert names_tls(Settings()) is None
    context = names_tls(Settings(names=NamesSettings(tls=True, tls_ca=CA)))
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.cert_store_stats()["x509"] == 1


@pytest.mark.parametrize("file", [KEY, "/no/none"])
def test_authorities_that_are_none_are_refused(file: str) -> None:
    with pytest.raises(Failure, match=f"names.tls_ca: {file} cannot be used") as caught:
        names_tls(Settings(names=NamesSettings(tls=True, tls_ca=file)))
    assert caught.value.code is ExitCode.USAGE
    with pytest.raises(Failure, match="--tls-ca"):
        chosen_tls(file)


def test_commands_believe_the_certificate_of_their_own_server_and_no_other(tmp_path: Path) -> None:
    """Whatever stands behind it in its file: authorities issue certificates to others, too."""
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(SERVER).read_text() + Path(CA).read_text())
    known = own_tls(TlsSettings(certificate=str(chain), key=KEY))
    assert not known.check_names
    assert known.context().cert_store_stats()["x509"] == 1
    assert known.authorities.count("BEGIN CERTIFICATE") == 1
    with pytest.raises(Failure, match="name its certificate"):
        own_tls(TlsSettings())
