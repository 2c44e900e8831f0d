"""JSON Web Tokens: which are good, for which keys; and what is wrong with a configuration."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.token_logins import BadToken, KeysMissing
from polymq.errors import ExitCode, Failure
from polymq.login_settings import JwtSettings
from polymq.logins.jwks import KeySet
from polymq.logins.outside_http import CallFailed
from polymq.logins.tokens import TOKEN_BYTES_MAX, Tokens, make_tokens

jwt = pytest.importorskip("jwt", reason="polymq[jwt] is not installed")
pytest.importorskip("cryptography", reason="polymq[jwt] is not installed")
from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa  # noqa: E402

NOW = 1_700_000_000.0
SECRET = b"0123456789abcdef" * 2
CLAIMS: dict[str, Any] = {"iss": "me", "aud": "mq", "sub": "ann", "exp": NOW + 60}


@pytest.fixture(scope="module")
def private() -> dict[str, Any]:
    return {
        "RS256": rsa.generate_private_key(65_537, 2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def made(**settings: Any) -> Tokens:
    found = make_tokens(JwtSettings(issuer="me", audience="mq", **settings))
    assert found is not None
    return found


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    return str(file)


def token(key: Any = SECRET, algorithm: str = "HS256", headers: Any = None, **claims: Any) -> bytes:
    wanted = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return str(jwt.encode(wanted, key, algorithm=algorithm, headers=headers)).encode()


def refused(tokens: Tokens, raw: bytes, now: float = NOW) -> str:
    with pytest.raises(BadToken) as caught:
        tokens.check(raw, now)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_public_key(tmp_path: Path, private: dict[str, Any], algorithm: str) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(pem(private[algorithm]))
    tokens = made(public_key_file=str(file))
    found = tokens.check(token(private[algorithm], algorithm), NOW)
    assert (found.user, found.expires_at) == ("ann", NOW + 90)
    for other in private.keys() - {algorithm}:
        refused(tokens, token(private[other], other))


def test_the_public_key_is_no_secret(tmp_path: Path, private: dict[str, Any]) -> None:
    """The classic: who knows the public key signs with it as the secret of HS256."""
    file = tmp_path / "key.pem"
    file.write_bytes(pem(private["RS256"]))
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT"}, CLAIMS)
    )
    digest = hmac.new(file.read_bytes(), head + b"." + body, hashlib.sha256).digest()
    forged = head + b"." + body + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")
    tokens = made(public_key_file=str(file))
    assert tokens.is_token(forged)
    refused(tokens, forged)
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=") + b"." + body + b"."
    refused(tokens, unsigned)
    refused(tokens, unsigned + b"x")


def test_a_set_of_keys(tmp_path: Path, private: dict[str, Any]) -> None:
    algorithms = jwt.algorithms
    keys = [
        {**json.loads(algorithms.RSAAlgorithm.to_jwk(private["RS256"].public_key())), "kid": "r"},
        {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": "e",
            "x": base64.urlsafe_b64encode(
                private["EdDSA"]
                .public_key()
                .public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
            )
            .rstrip(b"=")
            .decode(),
        },
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": keys}))
    tokens = made(jwks_file=str(file))
    assert tokens.check(token(private["RS256"], "RS256", {"kid": "r"}), NOW).user == "ann"
    assert tokens.check(token(private["EdDSA"], "EdDSA", {"kid": "e"}), NOW).user == "ann"
    for headers in (None, {"kid": "e"}, {"kid": "x"}):
        refused(tokens, token(private["RS256"], "RS256", headers))


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "you"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "other"}, "udience"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": NOW - 31}, "expired"),
        ({"exp": "soon"}, ""),
        ({"exp": True}, "number"),
        ({"nbf": NOW + 31}, "not hold yet"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "'sub'"),
    ],
)
def test_claims_that_do_not_do(secret: str, claims: dict[str, Any], said: str) -> None:
    tokens = made(secret_file=secret)
    assert said in refused(tokens, token(**claims))


def test_clocks_may_differ_a_little(secret: str) -> None:
    tokens = made(secret_file=secret)
    raw = token(exp=NOW, nbf=NOW - 10, aud=["x", "mq"])
    assert tokens.check(raw, NOW + 29).expires_at == NOW + 30
    assert tokens.check(raw, NOW - 39).user == "ann"
    assert refused(tokens, raw, NOW + 30) == "it has expired"


def test_other_claims_and_what_is_no_token(secret: str) -> None:
    tokens = made(secret_file=secret, user_claim="name")
    raw = token(name="bob")
    assert tokens.check(raw, NOW).user == tokens.claimed_user(raw) == "bob"
    for password in (b"", b"secret", b"a.b.c", raw + b".x", raw[:-20] + b"\n"):
        assert not tokens.is_token(password)
    refused(tokens, raw[:-2] + (b"AA" if raw[-2:] != b"AA" else b"BB"))
    refused(tokens, token(b"another secret of 32 bytes......"))
    refused(tokens, token(name="x" * TOKEN_BYTES_MAX))
    assert "extension" in refused(tokens, token(headers={"crit": ["x"], "x": 1}))
    for broken in (b"eyJ.eyJ.x", b"eyJhbGciOiJIUzI1NiJ9.W10.x", b"eyJhbGciOiJIUzI1NiJ9._w.x"):
        assert tokens.claimed_user(broken) == ""
        refused(tokens, broken)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kty": "RSA"}]}',
        b'{"keys": [1]}',
    ],
)
def test_key_files_that_do_not_do(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    for setting in ("public_key_file", "jwks_file", "secret_file"):
        with pytest.raises(Failure) as caught:
            made(**{setting: str(file)})
        assert caught.value.code is ExitCode.USAGE
        assert "\n" not in caught.value.text


def test_keys_that_are_too_weak_or_too_much(tmp_path: Path, private: dict[str, Any]) -> None:
    file = tmp_path / "key"
    whole = private["RS256"].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    weak = pem(rsa.generate_private_key(65_537, 1024))
    for content, said in (
        (whole, "private"),
        (weak, "2048"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "P-256"),
    ):
        file.write_bytes(content)
        with pytest.raises(Failure, match=said):
            made(public_key_file=str(file))


def test_a_set_that_is_fetched(private: dict[str, Any]) -> None:
    """What signs no tokens here is left out; a set that cannot be used changes nothing."""
    tokens = made(jwks_url="https://login.example.com/keys")
    good = token(private["RS256"], "RS256", {"kid": "r"})
    for _ in range(2):
        with pytest.raises(KeysMissing):
            tokens.check_keys(good)
        refused(tokens, good)
    rsa_key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private["RS256"].public_key()))
    others = [
        {"kty": "oct", "k": "AAAA", "kid": "o"},
        {**rsa_key, "use": "enc", "kid": "e"},
        {"kty": "XYZ", "kid": "x"},
        {"kty": "RSA", "kid": "broken"},
    ]
    keys = {"keys": [*others, {**rsa_key, "use": "sig", "kid": "r"}]}
    assert tokens.take_set(json.dumps(keys).encode()) == 1
    tokens.check_keys(good)
    assert tokens.check(good, NOW).user == "ann"
    for bad in (b"", b"{", b"[]", b'{"keys": []}', json.dumps({"keys": others}).encode()):
        with pytest.raises(ValueError, match="no set of keys"):
            tokens.take_set(bad)
    assert tokens.check(good, NOW).user == "ann"
    other = token(private["RS256"], "RS256", {"kid": "new"})
    tokens.check_keys(other)  # nothing is being fetched, so it is simply wrong
    tokens.want_keys = lambda: True
    with pytest.raises(KeysMissing):
        tokens.check_keys(other)
    tokens.check_keys(b"eyJ.x.y")  # whatever is wrong with it, it is not that


class Answering:
    """A caller whose answers are these, in their order."""

    def __init__(self, answers: list[bytes | CallFailed]) -> None:
        self.answers = answers

    async def call(self, _method: str) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, CallFailed):
            raise answer
        return answer


def test_after_a_fetch_that_failed_it_is_not_known_which_keys_there_are() -> None:
    """Whether the issuer cannot be reached, or its set cannot be used."""
    settings = JwtSettings(jwks_url="https://login.example.com/keys", issuer="me", audience="mq")
    wanted = []
    answers: list[bytes | CallFailed] = [
        b"1",
        CallFailed("status", "500"),
        b"2",
        b"x",
        CallFailed("timeout", "5 s"),
        b"3",
    ]

    async def main() -> None:
        keys = KeySet(settings, int)
        keys._caller = Answering(list(answers))  # type: ignore[assignment]
        for _ in answers:
            await keys._fetch()
            wanted.append(keys.want())

    asyncio.run(main())
    assert wanted == [False, True, False, True, True, False]


def test_a_claim_with_permissions(secret: str) -> None:
    tokens = made(secret_file=secret, permissions_claim="acl")
    assert tokens.check(token(), NOW).rules is None
    granted = tokens.check(token(acl={"sub": ["a/#"]}), NOW).rules
    assert [str(rule) for rule in granted or ()] == ["allow ann subscribe {exact}/a/#"]
    for bad in ("a/#", ["a/#"], {"sub": ["$SYS/#"]}):
        refused(tokens, token(acl=bad))
    assert made(secret_file=secret).check(token(acl="a/#"), NOW).rules is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"jwks_url": "http://login.example.com/keys"}, "https://"),
        ({"jwks_url": "ftp://login.example.com/keys"}, "must be a URL"),
        ({"jwks_url": "https://"}, "must be a URL"),
        ({"jwks_url": "https://me:secret@login.example.com/"}, "without user"),
        ({"jwks_url": "https://login.example.com/a b"}, "printable"),
        ({"jwks_url": "https://a/", "jwks_file": "b"}, "only one"),
        ({"permissions_claim": "acl"}, "needs keys"),
        ({"jwks_ca": "a.pem"}, "not set"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        JwtSettings(issuer="me", audience="mq", **settings)


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    for path in (file, tmp_path / "none.pem"):
        with pytest.raises(Failure, match=r"jwt\.jwks_ca"):
            made(jwks_url="https://login.example.com/", jwks_ca=str(path))
