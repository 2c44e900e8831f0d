"""JSON Web Tokens that clients send in the place of a password (RFC 7519). PyJWT checks signatures;
it is needed only where `[jwt]` is configured, and comes with the extra `jwt`.

Rules:

* A key has one algorithm: HS256 for a secret, RS256, ES256 or EdDSA for a public key, by its kind.
  What a token's header says is compared with that, never followed.
* A token needs an issuer, an audience, an expiry and the user's name. Times are compared here, by
  the clock of the caller.
* Of keys in a JWKS the one with the token's `kid` counts. Without a `kid` there has to be one key
  only.
* Keys of a file that cannot be used are an error at the start. Of a set that is fetched (`jwks.py`)
  keys of other kinds, and keys that are not for signatures, are left out.
* A claim with permissions that cannot be taken whole makes a token useless.
* A header with `crit` names what has to be understood, and none of it is (RFC 7515 part 4.1.11).
"""

from __future__ import annotations

import base64
import binascii
import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from polymq.broker.accounts.granting import BadPermissions, parse_permissions
from polymq.broker.accounts.permissions import Rule
from polymq.broker.accounts.token_logins import BadToken, KeysMissing, Token
from polymq.errors import ExitCode, Failure
from polymq.login_settings import JwtSettings
from polymq.logins.outside_http import client_tls
from polymq.secret_file import read_secret_file

TOKEN_BYTES_MAX: Final = 8 * 1024
SECRET_BYTES_MIN: Final = 32
"""RFC 7518 part 3.2: as much as the hash has."""
KEYS_MAX: Final = 100
_FORM: Final = re.compile(rb"eyJ[\w-]*\.[\w-]+\.[\w-]+")
_RSA_BITS_MIN: Final = 2048


def make_tokens(settings: JwtSettings) -> Tokens | None:
    """What checks tokens, as it is configured; None where it is not. Raises Failure: USAGE."""
    if not settings.enabled:
        return None
    try:
        jwt = importlib.import_module("jwt")
    except ImportError as error:
        raise _wrong("needs PyJWT: install it with `pip install 'polymq[jwt]'`") from error
    if settings.secret_file:
        secret = read_secret_file(settings.secret_file, "jwt.secret_file")
        if len(secret) < SECRET_BYTES_MIN:
            raise _wrong(f"secret_file has {len(secret)} bytes: HS256 needs {SECRET_BYTES_MIN}")
        return Tokens(jwt, settings, {None: (secret, "HS256")})
    try:
        if settings.jwks_url:
            importlib.import_module("cryptography")
            client_tls(settings.jwks_ca, "jwt.jwks_ca")
            return Tokens(jwt, settings, {})
        if settings.public_key_file:
            keys: Keys = {None: _public_key(Path(settings.public_key_file).read_bytes())}
        else:
            keys = _keys_of_set(jwt, json.loads(Path(settings.jwks_file).read_bytes()))
    except ImportError as error:
        raise _wrong("needs cryptography: install it with `pip install 'polymq[jwt]'`") from error
    except OSError as error:
        raise _wrong(f"has a file that cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise _wrong(f"has a key file that cannot be used: {text}") from error
    return Tokens(jwt, settings, keys)


class _Unusable(ValueError):
    """A key of a kind that signs no tokens here."""


Keys = dict[str | None, tuple[Any, str]]
"""A key and its algorithm, by its `kid`."""


class Tokens:
    """Checks tokens: `TokenChecker`.

    Args:
        jwt: the module of PyJWT.

    Attributes:
        want_keys: a token names a key that is not there. Returns whether it may be there soon.
    """

    def __init__(self, jwt: Any, settings: JwtSettings, keys: Keys) -> None:
        self._jwt = jwt
        self._settings = settings
        self._keys = keys
        self.want_keys: Callable[[], bool] = lambda: False

    def take_over(self, other: Tokens) -> None:
        """Check by the settings of another from now on, and with its keys; if keys are fetched,
        with those that were fetched last."""
        self._settings = other._settings
        if not self._settings.jwks_url:
            self._keys = other._keys

    def take_set(self, content: bytes) -> int:
        """Use the keys of a JWKS from now on, those of them that can be used. Returns how many they
        are. May be called in a thread. Raises ValueError: there are none."""
        try:
            keys = _keys_of_set(self._jwt, json.loads(content), whole=False)
        except (ValueError, TypeError, KeyError, RecursionError, self._jwt.PyJWTError) as error:
            text = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"it is no set of keys that can be used: {text}") from error
        self._keys = keys
        return len(keys)

    def check_keys(self, token: bytes) -> None:
        """See `TokenChecker`."""
        if not self._settings.jwks_url or len(token) > TOKEN_BYTES_MAX:
            return
        if not self._keys:
            self.want_keys()
            raise KeysMissing("the keys of tokens have not been fetched yet: try again in a moment")
        try:
            self._key_of(self._jwt.get_unverified_header(token))
        except _UnknownKey:
            if self.want_keys():
                raise KeysMissing(
                    "the token's key has not been fetched yet: try again in a moment"
                ) from None
        except (BadToken, self._jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return  # `check` says what is wrong

    def is_token(self, password: bytes) -> bool:
        """See `TokenChecker`."""
        return _FORM.fullmatch(password) is not None

    def claimed_user(self, token: bytes) -> str:
        """See `TokenChecker`."""
        if len(token) > TOKEN_BYTES_MAX:
            return ""
        payload = token.split(b".")[1]
        try:
            claims = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        except (ValueError, binascii.Error, RecursionError):
            return ""
        user = claims.get(self._settings.user_claim) if isinstance(claims, dict) else None
        return user if isinstance(user, str) else ""

    def check(self, token: bytes, now: float) -> Token:
        """See `TokenChecker`."""
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken(f"a token has at most {TOKEN_BYTES_MAX} bytes")
        settings = self._settings
        try:
            key, algorithm = self._key_of(self._jwt.get_unverified_header(token))
            claims = self._jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=settings.issuer,
                audience=settings.audience,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (self._jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(str(error) or type(error).__name__) from error
        expires_at, begins_at = claims["exp"], claims.get("nbf", 0)
        if not _is_time(expires_at) or not _is_time(begins_at):
            raise BadToken("a time is not a number")
        if now >= expires_at + settings.leeway_seconds:
            raise BadToken("it has expired")
        if now < begins_at - settings.leeway_seconds:
            raise BadToken("it does not hold yet")
        user = claims.get(settings.user_claim)
        if not isinstance(user, str) or not user:
            raise BadToken(f"it has no claim {settings.user_claim!r} with the name of a user")
        rules = self._rules_of(claims, user)
        return Token(user=user, expires_at=expires_at + settings.leeway_seconds, rules=rules)

    def _rules_of(self, claims: dict[str, Any], user: str) -> tuple[Rule, ...] | None:
        name = self._settings.permissions_claim
        if not name or name not in claims:
            return None
        try:
            return parse_permissions(claims[name], user)
        except BadPermissions as error:
            raise BadToken(f"its claim {name!r} is no list of permissions: {error}") from error

    def _key_of(self, header: dict[str, Any]) -> tuple[Any, str]:
        if "crit" in header:
            raise BadToken("its header demands an extension")
        kid = header.get("kid")
        found = self._keys.get(kid) if isinstance(kid, str) else None
        if found is None and len(self._keys) == 1:
            (only,) = self._keys
            if only is None or kid is None:
                found = self._keys[only]
        if found is None:
            raise _UnknownKey("there is no key with its kid")
        return found


class _UnknownKey(BadToken):
    """A token whose key is not there."""


def _public_key(pem: bytes) -> tuple[Any, str]:
    serialization = importlib.import_module("cryptography.hazmat.primitives.serialization")
    if b"PRIVATE KEY" in pem:
        raise ValueError("it is a private key: only the issuer of tokens needs that")
    if b"CERTIFICATE" in pem:
        raise ValueError("it is a certificate: write its public key into a file of its own")
    return _with_algorithm(serialization.load_pem_public_key(pem))


def _keys_of_set(jwt: Any, value: Any, *, whole: bool = True) -> Keys:
    """The keys of a JWKS.

    Args:
        whole: whether a key that cannot be used is an error, rather than left out.
    """
    listed = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not 0 < len(listed) <= KEYS_MAX:
        raise ValueError(f"a JWKS has 1 to {KEYS_MAX} keys")
    keys: Keys = {}
    for one in listed:
        if not isinstance(one, dict):
            raise ValueError("a key of a JWKS is an object")
        if not whole and one.get("use", "sig") != "sig":
            continue
        try:
            key = _key_of_set(jwt, one)
        except _Unusable:
            if whole:
                raise
            continue
        kid = one.get("kid")
        if kid in keys or not (kid is None or isinstance(kid, str)):
            raise ValueError(f"two keys with the kid {kid!r}")
        keys[kid] = key
    if not keys:
        raise ValueError("none of its keys can be used")
    if None in keys and len(keys) > 1:
        raise ValueError("a key without a kid beside others")
    return keys


def _key_of_set(jwt: Any, one: dict[str, Any]) -> tuple[Any, str]:
    if one.get("kty") == "oct":
        raise _Unusable("a JWKS with a secret: use secret_file")
    try:
        return _with_algorithm(jwt.PyJWK.from_dict(one).key)
    except (ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
        raise _Unusable(" ".join(str(error).split()) or type(error).__name__) from error


def _with_algorithm(key: Any) -> tuple[Any, str]:
    asymmetric = "cryptography.hazmat.primitives.asymmetric"
    ec, ed25519, rsa = (
        importlib.import_module(f"{asymmetric}.{name}") for name in ("ec", "ed25519", "rsa")
    )
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_MIN:
            raise ValueError(f"an RSA key needs {_RSA_BITS_MIN} bits")
        return key, "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name != "secp256r1":
            raise ValueError(f"ES256 needs a key on P-256, not on {key.curve.name}")
        return key, "ES256"
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key, "EdDSA"
    raise ValueError("the key is neither RSA, nor on the curve P-256, nor Ed25519")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53


def _wrong(text: str) -> Failure:
    return Failure(ExitCode.USAGE, f"[jwt] {text}")
