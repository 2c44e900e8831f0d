"""An authority that issues certificates and revokes them, by the command openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SECONDS_MAX = 30
CONFIGURATION = """
[ca]
default_ca = own
[own]
database = {directory}/index.txt
serial = {directory}/serial
crlnumber = {directory}/crlnumber
new_certs_dir = {directory}
certificate = {directory}/ca.pem
private_key = {directory}/ca.key
default_md = sha256
default_days = 30
default_crl_days = 30
policy = any
unique_subject = no
copy_extensions = copy
[any]
organizationName = optional
commonName = optional
emailAddress = optional
[req]
distinguished_name = name
string_mask = utf8only
[name]
"""


class Authority:
    """A directory with an authority, and what it issued.

    Attributes:
        certificate: its own, for those who trust it.
        crl: its revocation list; `revoke` and `write_crl` write it.
    """

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl on this machine")
        directory.mkdir()
        self.directory = directory
        self.certificate, self.crl = directory / "ca.pem", directory / "crl.pem"
        self._configuration = directory / "openssl.cnf"
        self._configuration.write_text(CONFIGURATION.format(directory=directory))
        (directory / "index.txt").write_text("")
        for name in ("serial", "crlnumber"):
            (directory / name).write_text("1000\n")
        self._key(directory / "ca.key")
        self._run(
            "req", "-x509", "-new", "-key", directory / "ca.key", "-out", self.certificate,
            "-subj", "/CN=Authority", "-days", "30", "-addext", "basicConstraints=critical,CA:TRUE",
        )  # fmt: skip

    def issue(self, name: str, subject: str, alternatives: str = "") -> tuple[Path, Path]:
        """A certificate and its key, in files of this name."""
        key, request = self.directory / f"{name}.key", self.directory / f"{name}.csr"
        certificate = self.directory / f"{name}.pem"
        self._key(key)
        more = ["-addext", f"subjectAltName={alternatives}"] if alternatives else []
        self._run("req", "-new", "-utf8", "-key", key, "-out", request, "-subj", subject, *more)
        self._run("ca", "-batch", "-notext", "-in", request, "-out", certificate)
        return certificate, key

    def revoke(self, certificate: Path) -> None:
        """Take a certificate back, and say so in the list."""
        self._run("ca", "-revoke", certificate)
        self.write_crl()

    def write_crl(self) -> None:
        """Write the list of what was revoked."""
        self._run("ca", "-gencrl", "-out", self.crl)

    def _key(self, path: Path) -> None:
        subprocess.run(
            ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path],
            check=True,
            capture_output=True,
            timeout=SECONDS_MAX,
        )
        path.chmod(0o600)

    def _run(self, command: str, *arguments: object) -> None:
        done = subprocess.run(
            ["openssl", command, "-config", self._configuration, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
