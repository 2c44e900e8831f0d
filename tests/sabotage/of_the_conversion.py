"""Sabotages of what another broker's configuration becomes."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_CONF = ("tests/polymq/mosquitto/test_conf.py",)
_SEPARATE = ("tests/polymq/mosquitto/test_separate.py",)

OF_THE_CONVERSION = (
    Sabotage(
        name="listener-with-pre-shared-keys-is-converted-without",
        why="clients needed a key there, and now everybody comes in, and without TLS",
        path="polymq/mosquitto/listeners.py",
        old='        for name in ("psk_hint", "tls_keyform"):\n',
        new='        for name in ("tls_keyform",):\n',
        tests=_CONF,
    ),
    Sabotage(
        name="prefixes-of-client-ids-are-forgotten",
        why="only devices of a prefix came in, and now everybody does",
        path="polymq/mosquitto/settings.py",
        old="                if prefixes is not None:\n",
        new="                if False:\n",
        tests=_CONF,
    ),
    Sabotage(
        name="listeners-with-other-users-are-mixed",
        why="users of one password file log in at a listener that has another one",
        path="polymq/mosquitto/separate.py",
        old="    return other is not None and one.value == other.value\n",
        new="    return other is not None\n",
        tests=_SEPARATE,
    ),
    Sabotage(
        name="users-of-a-listener-that-is-left-out-are-imported",
        why="who could log in only at a listener that is not here logs in at the others",
        path="polymq/mosquitto/settings.py",
        old="        sections = [self._conf.general, *(given for given, _ in self._opened)]\n",
        new="        sections = [self._conf.general, *self._conf.listeners]\n",
        tests=_SEPARATE,
    ),
    Sabotage(
        name="rules-without-passwords-are-forgotten",
        why="a server that should have rules lets other machines do everything",
        path="polymq/mosquitto/settings.py",
        old="        if not (passwords or rules or by_certificate or plugins):\n",
        new="        if not (passwords or by_certificate or plugins):\n",
        tests=_CONF,
    ),
    Sabotage(
        name="included-file-goes-on-with-the-listener-of-the-main-file",
        why="a limit or mount point gets to another listener than mosquitto's",
        path="polymq/mosquitto/conf.py",
        old="            self.read(file, text, is_main=False)\n",
        new="            self._default = (self._conf.listeners or [self._default])[-1]\n"
        "            self.read(file, text, is_main=False)\n",
        tests=_CONF,
    ),
    Sabotage(
        name="wrong-lines-are-converted",
        why="a misspelt option may be the one that kept clients out",
        path="polymq/commands/config.py",
        old="    if conversion.has(Kind.WRONG):\n",
        new="    if not conversion.listeners and conversion.has(Kind.WRONG):\n",
        tests=("tests/polymq/commands/test_config.py",),
    ),
)
