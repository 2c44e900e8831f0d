"""An LDAP directory for tests: OpenLDAP's slapd with some people in it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from interop_tests.bridging import free_port
from interop_tests.test_tls import FILES

ROOT = os.environ.get("SLAPD_ROOT", "/")
"""Where the package `slapd` is unpacked, if it is not installed."""
SLAPD = shutil.which("slapd", path=f"{os.environ['PATH']}:{ROOT}/usr/sbin:/usr/local/libexec")
SECONDS = 20.0
BASE = "dc=example,dc=com"
PASSWORD = "geheim-4711"
SEARCHER = f"cn=searcher,{BASE}"
SEARCHER_PASSWORD = "sucht"

CONFIG = """
include {root}/etc/ldap/schema/core.schema
include {root}/etc/ldap/schema/cosine.schema
include {root}/etc/ldap/schema/inetorgperson.schema
modulepath {root}/usr/lib/ldap
moduleload back_mdb
pidfile {directory}/slapd.pid
TLSCACertificateFile {ca}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
allow bind_anon_cred
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="{searcher}" read by * none
database mdb
suffix "{base}"
directory {directory}/db
"""

PEOPLE = f"""
dn: {BASE}
objectClass: dcObject
objectClass: organization
o: Example
dc: example

dn: {SEARCHER}
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: searcher
userPassword: {SEARCHER_PASSWORD}

dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people
"""

PERSON = """
dn: uid={escaped},ou=people,{base}
objectClass: inetOrgPerson
uid: {name}
cn: {name}
sn: {name}
description: {kind}
userPassword: {password}
"""


class Directory:
    """A started slapd.

    Args:
        people: names, with what they are.
    """

    def __init__(self, directory: Path, people: dict[str, str]) -> None:
        self.port, self.tls_port = free_port(), free_port()
        (directory / "db").mkdir(parents=True)
        config = directory / "slapd.conf"
        config.write_text(
            CONFIG.format(
                root=ROOT.rstrip("/"),
                directory=directory,
                base=BASE,
                searcher=SEARCHER,
                ca=FILES / "ca.pem",
                certificate=FILES / "server.pem",
                key=FILES / "server.key",
            )
        )
        entries = PEOPLE + "".join(
            PERSON.format(
                name=name,
                escaped=name.replace(",", r"\,").replace("=", r"\="),
                kind=kind,
                base=BASE,
                password=PASSWORD,
            )
            for name, kind in people.items()
        )
        assert SLAPD is not None
        self._command = [SLAPD, "-f", str(config)]
        subprocess.run(
            [SLAPD, "-T", "add", "-f", str(config)],
            input=entries,
            text=True,
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Listen, and return when it does."""
        urls = f"ldap://127.0.0.1:{self.port} ldaps://127.0.0.1:{self.tls_port}"
        self.process = subprocess.Popen(
            [*self._command, "-h", urls, "-d", "0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + SECONDS
        for port in (self.port, self.tls_port):
            while True:
                assert self.process.poll() is None, "slapd has ended"
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "slapd does not listen"

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
