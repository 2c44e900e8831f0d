"""Bugs planted in the files of pre-shared keys. Those of handshakes need Python 3.13 or later."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

FILES = "tests/polymq/test_preshared_keys.py"
LISTENERS = "interop_tests/test_mqtt_preshared_keys.py"

OF_THE_PRESHARED_KEYS = (
    Sabotage(
        name="psk-short-keys",
        why="who has listened to one handshake guesses the key",
        path="polymq/preshared_keys.py",
        old="        if not SECRET_SIZE_MIN <= len(key) <= KEY_BYTES_MAX:\n",
        new="        if False:\n",
        tests=(FILES,),
    ),
    Sabotage(
        name="psk-readable-by-others",
        why="every account of the machine can be every device",
        path="polymq/preshared_keys.py",
        old="        if others_read(path):\n",
        new="        if False:\n",
        tests=(FILES,),
    ),
    Sabotage(
        name="psk-beside-certificates",
        why="an operator believes that a listener checks certificates, and it asks for none",
        path="polymq/listener_settings.py",
        old="        if self.tls_psk_file:\n",
        new="        if False:\n",
        tests=(f"{LISTENERS}::test_settings_that_contradict_each_other",),
    ),
)
