"""Sabotages of MQTT listeners: proxies, certificates, Unix sockets, logins and mount points."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

_PROXY = ("tests/net/test_proxy_protocol.py",)
_RULES = ("tests/gateways/mqtt/test_mqtt_rules.py",)

OF_THE_LISTENERS = (
    Sabotage(
        name="proxy-certificate-that-failed-names-a-user",
        why="a client with a forged certificate is whoever it says",
        path="net/proxy_protocol.py",
        old=" and client & _CERTIFIED and not failed:",
        new=" and client & _CERTIFIED:",
        tests=_PROXY,
    ),
    Sabotage(
        name="proxy-header-takes-what-follows",
        why="the client's CONNECT, or its TLS handshake, is lost",
        path="net/proxy_protocol.py",
        old="        return size - before\n",
        new="        return len(data) - before\n",
        tests=_PROXY,
    ),
    Sabotage(
        name="unix-socket-of-a-living-server-is-replaced",
        why="a second start takes the clients of a server that runs",
        path="net/unix_socket.py",
        old="            asking.connect(path)\n",
        new="            return True\n",
        tests=("tests/net/test_unix_socket.py",),
    ),
    Sabotage(
        name="subject-begins-with-its-first-part",
        why="a user that was named as RFC 4514 says is not found",
        path="net/certificates.py",
        old="for names in reversed(relative)),",
        new="for names in relative),",
        tests=("tests/net/test_certificates.py",),
    ),
    Sabotage(
        name="mount-point-has-its-parent",
        why="a tenant that subscribes to everything gets what is published beside it",
        path="gateways/mqtt/mapping.py",
        old='("+/#" if pattern == "#" else pattern)',
        new="pattern",
        tests=_RULES,
    ),
    Sabotage(
        name="mount-point-is-sent-to-clients",
        why="a client gets messages of topics that it does not know",
        path="gateways/mqtt/mapping.py",
        old=".removeprefix(self._mount_point).encode",
        new=".encode",
        tests=_RULES,
    ),
    Sabotage(
        name="client-id-reaches-a-session-of-another-mount-point",
        why="a stranger takes over the session of a tenant",
        path="gateways/mqtt/login.py",
        old="        if rules.is_foreign(self.client_id):\n",
        new="        if False:\n",
        tests=_RULES,
    ),
    Sabotage(
        name="required-login-without-users",
        why="a listener that requires a login lets everybody in before the first user is made",
        path="gateways/mqtt/login.py",
        old="            if admission.for_principal(ANONYMOUS) is port:\n",
        new="            if False:\n",
        tests=_RULES,
    ),
)
