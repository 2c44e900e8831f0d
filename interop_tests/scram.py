"""A client of SCRAM-SHA-256 (RFC 5802, RFC 7677) by hand, which trusts no server: it checks the
nonce, the number of iterations and the server's signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

ITERATIONS_MIN = 4096


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class ScramClient:
    """One exchange.

    Attributes:
        salt: what the server sent.
    """

    def __init__(self, user: str, password: str, *, header: str = "n,,") -> None:
        self.header = header
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={secrets.token_hex(12)}"
        self.password = password
        self.salt = b""
        self._signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """The last message, in answer to the server's first one."""
        text = challenge.decode()
        parts = dict(part.split("=", 1) for part in text.split(","))
        nonce = self.bare.partition("r=")[2]
        assert parts["r"].startswith(nonce)
        assert len(parts["r"]) >= len(nonce) + 18
        iterations = int(parts["i"])
        assert iterations >= ITERATIONS_MIN
        self.salt = base64.b64decode(parts["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), self.salt, iterations)
        header = base64.b64encode(self.header.encode()).decode()
        without_proof = f"c={header},r={parts['r']}"
        signed = f"{self.bare},{text},{without_proof}"
        client_key = _hmac(salted, "Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._signature = _hmac(_hmac(salted, "Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def trusts(self, last: bytes) -> bool:
        """Whether the server's last message proves that it knows the password's keys."""
        return last == b"v=" + base64.b64encode(self._signature)
