"""A mosquitto.conf as settings: it is read as mosquitto reads it, no line is lost, what is written
loads, and no listener lets in more clients than before."""

from __future__ import annotations

import gzip
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.mosquitto.conf import Kind, lines_of
from polymq.mosquitto.options import OPTIONS, Fate, Form, Option, Scope, markdown_table
from polymq.mosquitto.settings import Conversion, convert
from polymq.mosquitto.toml import write_toml
from polymq.settings import SECTIONS, Settings

ROOT = Path(__file__).resolve().parents[3]
MAN_PAGE = Path("/usr/share/man/man5/mosquitto.conf.5.gz")
TLS = "certfile /c.pem\nkeyfile /k.pem\n"
MAN_PAGE_TEXT = """
acl_file address allow_anonymous allow_duplicate_messages allow_zero_length_clientid auth_opt_x
auth_plugin auth_plugin_deny_special_chars auto_id_prefix autosave_interval autosave_on_changes
bind_address bind_interface bridge_alpn bridge_attempt_unsubscribe bridge_bind_address bridge_cafile
bridge_capath bridge_certfile bridge_identity bridge_insecure bridge_keyfile bridge_max_packet_size
bridge_outgoing_retain bridge_protocol_version bridge_psk bridge_require_ocsp bridge_tls_version
cafile capath certfile check_retain_source ciphers ciphers_tls1.3 cleansession clientid_prefixes
connection connection_messages crlfile dhparamfile http_dir idle_timeout include_dir
keepalive_interval keyfile listener local_cleansession local_clientid local_password local_username
log_dest log_facility log_timestamp log_timestamp_format log_type max_connections max_inflight_bytes
max_inflight_messages max_keepalive max_packet_size max_qos max_queued_bytes max_queued_messages
max_topic_alias memory_limit message_size_limit mount_point notification_topic notifications
notifications_local_only password_file per_listener_settings persistence persistence_file
persistence_location persistent_client_expiration pid_file port protocol psk_file psk_hint
queue_qos0_messages remote_clientid remote_password remote_username require_certificate
restart_timeout retain_available round_robin set_tcp_nodelay socket_domain start_type sys_interval
threshold tls_engine tls_engine_kpass_sha1 tls_keyform tls_version topic try_private
upgrade_outgoing_qos use_identity_as_username use_subject_as_username use_username_as_clientid user
websockets_headers_size websockets_log_level
"""
"""The options of mosquitto.conf(5), 2.0.11."""


def files_of(directory: str) -> Sequence[tuple[str, str]]:
    """Directories that the tests include."""
    if directory == "/none":
        raise FileNotFoundError(2, "No such file or directory")
    return {
        "/two": [("A.conf", "max_connections 1\n"), ("b.conf", "listener 1884\nmount_point b/\n")],
        "/nested": [("n.conf", "include_dir /two\n")],
    }.get(directory, [])


def converted(text: str) -> Conversion:
    return convert("m.conf", text, files_of)


def written(conversion: Conversion) -> dict[str, Any]:
    """The settings that are written, as they stand in the file."""
    assert not conversion.has(Kind.WRONG), remarks(conversion)
    return tomllib.loads(write_toml(conversion, "m.conf"))


def settings_of(text: str) -> dict[str, Any]:
    return written(converted(text))


def listeners_of(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = settings_of(text)["mqtt"].get("listeners", [])
    return found


def remarks(conversion: Conversion, kind: Kind | None = None) -> list[str]:
    return [str(each) for each in conversion.remarks if kind is None or each.kind is kind]


def wrong(text: str) -> list[str]:
    return remarks(converted(text), Kind.WRONG)


def assert_accounted(text: str) -> Conversion:
    """Every line is a source of a setting, or something is said about it."""
    conversion = converted(text)
    said = {each.line for each in conversion.remarks} | conversion.used | conversion.covered
    assert [line for line in lines_of("m.conf", text) if line not in said] == []
    return conversion


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n  \n\r\n", "#\n#listener 1\n"])
def test_an_empty_file_is_open_to_this_machine(text: str) -> None:
    """As in mosquitto 2.0: port 1883 of loopback, and no login."""
    assert listeners_of(text) == [
        {"name": "port-1883", "host": "127.0.0.1", "port": 1883, "allow_anonymous": True}
    ]
    assert "server" not in settings_of(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listener 1885\n", ("0.0.0.0", 1885)),
        ("  listener   1885  127.0.0.1 \n", ("127.0.0.1", 1885)),
        ("listener 1885 127.0.0.1\r\n", ("127.0.0.1", 1885)),
        ("listener 1885 # mine\n", ("0.0.0.0", 1885)),
        ("listener 1885 127.0.0.1 # mine\n", ("127.0.0.1", 1885)),
        ("listener 1885\nsocket_domain ipv4\n", ("0.0.0.0", 1885)),
        ("listener 1885\nsocket_domain ipv6\n", ("::", 1885)),
        ("port 1885\n", ("0.0.0.0", 1885)),
        ("port 1\nport 1885\nbind_address ::1\n", ("::1", 1885)),
        ("max_connections 5\n", ("0.0.0.0", 1883)),
        ("listener 1885\nbind_interface eth0\n", ("127.0.0.1", 1885)),
    ],
)
def test_where_a_listener_is(text: str, expected: tuple[str, int]) -> None:
    """Of an interface only the name is known: nothing but loopback is surely not more."""
    (listener,) = listeners_of(text)
    assert (listener["host"], listener["port"]) == expected


def test_what_stands_above_the_first_listener_opens_the_default_one() -> None:
    listeners = listeners_of("max_connections 5\nlistener 1885\nmax_connections 6\n")
    assert [(each["port"], each["connections_max"]) for each in listeners] == [(1885, 6), (1883, 5)]


@pytest.mark.parametrize(
    ("security", "opens"),
    [
        ("password_file /p", True),
        ("plugin /p.so", True),
        ("allow_zero_length_clientid false", True),
        ("allow_zero_length_clientid true", False),
        ("allow_anonymous true", False),
        ("acl_file /a", False),
    ],
)
def test_security_above_the_first_listener(security: str, opens: bool) -> None:
    """With per_listener_settings it belongs to the default listener, which is opened for some of
    these only. Without, it is for all, and opens none."""
    per_listener = f"per_listener_settings true\n{security}\nlistener 1885\n"
    assert len(listeners_of(f"{per_listener}allow_anonymous true\n")) == 1 + opens
    assert len(listeners_of(f"{security}\nlistener 1885\n")) == 1
    assert listeners_of(per_listener)[0]["allow_anonymous"] is False
    assert_accounted(per_listener)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("listener 1885\n", [False]),
        ("port 1885\n", [False]),
        ("max_connections 5\n", [True]),
        ("allow_anonymous true\nlistener 1885\nlistener 1886\n", [True, True]),
        ("listener 1885\nallow_anonymous true # for all\nlistener 1886\n", [True, True]),
        ("listener 1885\nallow_anonymous 1\nlistener 1886\nallow_anonymous 0\n", [False, False]),
        (
            "per_listener_settings true\nlistener 1885\nallow_anonymous true\nlistener 1886\n",
            [True, False],
        ),
        ("allow_anonymous true\nlistener 1885\nlistener_allow_anonymous false\n", [False]),
    ],
)
def test_who_needs_no_login(text: str, allowed: list[bool]) -> None:
    assert [each["allow_anonymous"] for each in listeners_of(text)] == allowed
    assert_accounted(text)


def test_included_files_begin_anew_and_the_main_file_goes_on() -> None:
    """A.conf is about the default listener, b.conf about its own, and the last line is about the
    listener of the main file."""
    text = "listener 1885\ninclude_dir /two\nmount_point a/\n"
    listeners = listeners_of(text)
    assert [(each["port"], each.get("mount_point")) for each in listeners] == [
        (1885, "a/"), (1884, "b/"), (1883, None),
    ]  # fmt: skip
    assert listeners[2]["connections_max"] == 1
    toml = write_toml(converted(text), "m.conf")
    assert 'mount_point = "a/"  # line 3\n' in toml
    assert 'mount_point = "b/"  # b.conf:2\n' in toml


def test_texts_take_the_rest_of_the_line() -> None:
    text = "persistence_location   /var/my data # not a comment \n"
    assert settings_of(text)["server"]["data_directory"] == "/var/my data # not a comment/polymq"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("nonsense 1\n", 1, "nonsense: mosquitto has no such option"),
        ("\n # c\n", 2, "#: mosquitto has no such option"),
        ("listener\t1885\n", 1, "listener\t1885: mosquitto has no such option"),
        ("listener x\n", 1, "listener: 'x' is not a number"),
        ("listener 70000\n", 1, "listener: 70000 is not from 0 to 65535"),
        ("listener 0\n", 1, "listener: port 0 is for a Unix socket, and needs its path"),
        ("allow_anonymous True\n", 1, "allow_anonymous: 'True' is neither true nor false"),
        ("max_keepalive 1x\n", 1, "max_keepalive: '1x' is not a number"),
        ("max_packet_size 10\n", 1, "max_packet_size: 10 is not from 20 to 2147483647"),
        ("persistence_location\n", 1, "persistence_location: there is no value"),
        ("acl_file /a\nacl_file /b\n", 2, "acl_file: it stands in line 1 already"),
        ("persistent_client_expiration 2\n", 1,
         "persistent_client_expiration: '2' is no number (1 to 999999) with h, d, w, m or y"),
        ("mount_point a/\n", 1, "mount_point: no `listener` stands above it"),
        ("topic # out\n", 1, "topic: it belongs to a bridge, and no `connection` stands above it"),
        ("connection\n", 1, "connection: there is no name"),
        ("acl_file /a\nper_listener_settings true\n", 2,
         "per_listener_settings: it has to stand before the other options of security"),
        ("log_type loud\n", 1, "log_type: 'loud' is not a type of log lines"),
        ("listener 1\nprotocol mqttsn\n", 2,
         "protocol: 'mqttsn' is none of mqtt, websockets, http_api"),
        ("include_dir /none\n", 1, "include_dir: cannot read /none: No such file or directory"),
        ("password_file /\udce9\n", 1, "password_file: the value is not UTF-8"),
        ("listener 1\nmount_point a/+/\n", 2, "mount_point: it has a wildcard"),
        ("listener 1\nmount_point a\0/\n", 2, "mount_point: the value has a NUL"),
        ("plugin_opt_* x\nplugin_* x\n", 2, "plugin_*: mosquitto has no such option"),
    ],
)  # fmt: skip
def test_what_mosquitto_does_not_take_is_wrong(text: str, line: int, problem: str) -> None:
    name, _, what = problem.partition(": ")
    assert wrong(text) == [f"m.conf:{line}: {name}: wrong: {what}"]


def test_a_file_that_is_included_includes_no_other() -> None:
    problem = "n.conf:1: include_dir: wrong: it is valid in the main file only"
    assert wrong("include_dir /nested\n") == [problem]


def test_a_comment_may_have_any_bytes() -> None:
    assert wrong("# caf\udce9\nlistener 1885\n") == []


# --- options ----------------------------------------------------------------------------------


def test_the_man_page_is_known() -> None:
    """Every option of mosquitto.conf(5)."""
    known = {name.replace("*", "x") for name in OPTIONS}
    assert set(MAN_PAGE_TEXT.split()) - known == set()


@pytest.mark.skipif(not MAN_PAGE.exists(), reason="mosquitto's manual is not installed")
def test_the_installed_man_page_is_known() -> None:
    page = gzip.decompress(MAN_PAGE.read_bytes()).decode()
    names = set(re.findall(r"^\.PP\n\\fB([a-z][a-z0-9_.]*)\\fR", page, re.MULTILINE))
    assert len(names) > 90
    assert names - set(OPTIONS) - {"auth_opt_", "mosquitto"} == set()


EXAMPLES = {
    "listener": "1890 localhost",
    "mount_point": "a/b/",
    "protocol": "websockets",
    "socket_domain": "ipv4",
    "log_type": "warning",
    "log_dest": "file /var/log/m.log",
    "accept_protocol_versions": "4, 5",
    "persistent_client_expiration": "3w",
    "include_dir": "/two",
    "websockets_origin": "https://example.com",
    "tls_keyform": "pem",
    "connection": "up\naddress 10.0.0.1\ntopic a",
    "address": "10.0.0.1:1884",
    "addresses": "10.0.0.1",
    "topic": "# both 1",
    "bridge_protocol_version": "mqttv50",
    "bridge_tls_use_os_certs": "true",
    "cleansession": "true",
    "clientid": "c",
    "keepalive_interval": "60",
    "notification_topic": "a/b",
    "notifications": "true",
    "notifications_local_only": "false",
    "remote_clientid": "c",
    "restart_timeout": "5 30",
}
BESIDE = {
    "bridge_certfile": "bridge_keyfile /k.pem\n",
    "bridge_keyfile": "bridge_certfile /c.pem\n",
    "password": "username u\n",
    "remote_password": "remote_username u\n",
}
"""What an option of a bridge needs."""


def example(option: Option) -> str:
    """A line with this option."""
    name = option.name.replace("*", "key")
    if option.name in EXAMPLES:
        return f"{name} {EXAMPLES[option.name]}\n"
    if option.form is Form.BOOL:
        return f"{name} true\n"
    if option.form is Form.NUMBER:
        return f"{name} {min(option.high, max(option.low, 1000))}\n"
    return f"{name} /some/path\n"


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_each_option_is_accounted_for(name: str) -> None:
    """Alone at a listener with TLS: it becomes a setting or a step, or there is a remark."""
    option = OPTIONS[name]
    begin = "" if name == "per_listener_settings" else "listener 1885\n"
    if option.scope is Scope.BRIDGE and name != "connection":
        begin += "connection up\n" + BESIDE.get(name, "")
        begin += "" if name.startswith("address") else "address 10.0.0.1\n"
        begin += "topic a\n"
    if name not in ("certfile", "keyfile"):
        begin += TLS
    elif name == "certfile":
        begin += "keyfile /k.pem\n"
    else:
        begin += "certfile /c.pem\n"
    if name in ("cafile", "crlfile", "capath"):
        begin += "require_certificate true\n"
    if name in ("require_certificate", "use_identity_as_username", "use_subject_as_username"):
        begin += "cafile /ca.pem\n"
    if name == "websockets_origin":
        begin += "protocol websockets\n"
    if name == "crlfile":
        begin += "cafile /ca.pem\n"
    conversion = assert_accounted(begin + example(option))
    written(conversion)
    own = [each for each in conversion.remarks if each.line.name == name.replace("*", "key")]
    own = [each for each in own if "IPv6" not in each.text]
    if name in ("bridge_identity", "bridge_psk"):
        assert any("is not converted: " in each.text for each in conversion.remarks)
    elif option.fate is Fate.CONVERTED:
        assert not own or name in ("bridge_capath", "capath", "enable_proxy_protocol"), own
    else:
        (remark,) = own
        assert option.text in remark.text or remark.text.endswith("this server does the same")


def test_all_options_together() -> None:
    """Those of the server, and all of a listener that may stand together."""
    general = [each for each in OPTIONS.values() if each.scope in (Scope.GENERAL, Scope.PLUGIN)]
    security = [each for each in OPTIONS.values() if each.scope is Scope.SECURITY]
    without = {"psk_hint", "listener", "port", "bind_address", "maximum_qos"}
    without |= {"clientid_prefixes", "proxy_protocol_v2_require_tls"}  # no listener is left
    own = [
        each
        for each in OPTIONS.values()
        if each.scope is Scope.LISTENER and each.name not in without
    ]
    bridge = [each for each in OPTIONS.values() if each.scope is Scope.BRIDGE]
    bridge.remove(OPTIONS["connection"])
    general = [each for each in general if each.name not in without]
    general.sort(key=lambda each: each.name != "per_listener_settings")
    text = "".join(
        example(each)
        for each in (*general, OPTIONS["listener"], *own, *security, OPTIONS["connection"], *bridge)
    )
    conversion = assert_accounted(text)
    settings = Settings(**written(conversion))
    (listener,) = [each for each in settings.mqtt.listeners if each.port == 1890]
    assert listener.tls_client_ca == "/some/path"
    assert listener.websocket_origins == ["https://example.com"]


def test_settings_of_the_table_exist() -> None:
    """What the table says that options become are settings or commands."""
    listener = SECTIONS["mqtt"].model_fields["listeners"].annotation
    assert listener is not None
    for option in OPTIONS.values():
        assert (option.fate is Fate.CONVERTED) == bool(option.becomes), option
        if option.becomes[:1] in "(`":
            continue
        for found in re.findall(r"\b([a-z]+)\.([a-z0-9_]+)\b", option.becomes):
            assert found[1] in SECTIONS[found[0]].model_fields, option


def test_the_documentation_has_the_table() -> None:
    page = ROOT / "docs/migrating-from-mosquitto.md"
    assert markdown_table() in page.read_text(encoding="utf-8")


# --- converting -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "section", "expected"),
    [
        ("max_inflight_messages 7", "mqtt", {"inflight_max": 7}),
        ("max_queued_messages 0", "mqtt",
         {"session_queue_max": 0, "session_queue_overflow": "drop_newest"}),
        ("max_queued_messages 5", "mqtt",
         {"session_queue_max": 5, "session_queue_overflow": "drop_newest"}),
        ("max_queued_bytes 4096", "mqtt",
         {"session_queue_bytes_max": 4096, "session_queue_overflow": "drop_newest"}),
        ("max_queued_bytes 4096\nmax_queued_messages 5", "mqtt",
         {"session_queue_max": 5, "session_queue_bytes_max": 4096,
          "session_queue_overflow": "drop_newest"}),
        ("max_keepalive 60", "mqtt", {"keep_alive_seconds_max": 60}),
        ("queue_qos0_messages true", "mqtt", {"queue_qos0_messages": True}),
        ("retain_available false", "mqtt", {"retain_available": False}),
        ("sys_interval 0", "mqtt", {"sys_interval_seconds": 0}),
        ("persistent_client_expiration 2m", "mqtt", {"session_expiry_seconds": 60 * 86_400}),
        ("persistent_client_expiration 1y", "mqtt", {"session_expiry_seconds": 365 * 86_400}),
        ("persistence_location /var/lib/mosquitto/", "server",
         {"data_directory": "/var/lib/mosquitto/polymq"}),
        ("message_size_limit 1000", "storage", {"message_bytes_max": 1000}),
        ("log_type error\nlog_type notice", "log", {"level": "info"}),
        ("log_type all", "log", {"level": "debug"}),
        ("log_type none", "log", {"level": "error"}),
    ],
)  # fmt: skip
def test_options_of_the_server(line: str, section: str, expected: dict[str, Any]) -> None:
    settings = settings_of(f"listener 1885\n{line}\n")
    assert {key: settings[section][key] for key in expected} == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("max_connections 3", {"connections_max": 3}),
        ("max_connections -1", {}),
        ("mount_point a/b/", {"mount_point": "a/b/"}),
        ("protocol mqtt", {}),
        ("protocol websockets", {"type": "websocket"}),
        ("max_packet_size 1000", {"packet_bytes_max": 1000}),
        ("max_packet_size 100000000", {}),
        ("message_size_limit 1000\nmax_packet_size 1000000", {}),
        ("accept_protocol_versions 5,4", {"protocol_versions": ["5", "3.1.1"]}),
        (TLS, {"tls": True, "tls_certificate": "/c.pem", "tls_key": "/k.pem"}),
        (f"{TLS}cafile /ca.pem\nrequire_certificate false",
         {"tls": True, "tls_certificate": "/c.pem", "tls_key": "/k.pem"}),
        (f"{TLS}cafile /ca.pem\ncrlfile /crl.pem\nrequire_certificate true",
         {"tls": True, "tls_certificate": "/c.pem", "tls_key": "/k.pem", "tls_client_ca": "/ca.pem",
          "tls_client_certificates": "required", "tls_crl": "/crl.pem"}),
        (f"{TLS}capath /ca\nuse_subject_as_username true",
         {"tls": True, "tls_certificate": "/c.pem", "tls_key": "/k.pem",
          "tls_client_ca": "/ca/polymq-client-ca.pem", "tls_client_certificates": "required",
          "user_from_certificate": "subject"}),
        (f"{TLS}cafile /ca.pem\nuse_subject_as_username true\nuse_identity_as_username true",
         {"tls": True, "tls_certificate": "/c.pem", "tls_key": "/k.pem", "tls_client_ca": "/ca.pem",
          "tls_client_certificates": "required", "user_from_certificate": "cn"}),
        ("cafile /ca.pem\nrequire_certificate true\nuse_identity_as_username true", {}),
        ("enable_proxy_protocol 2", {"proxy_protocol": True, "proxy_networks": ["127.0.0.1/32"]}),
    ],
)  # fmt: skip
def test_options_of_a_listener(lines: str, expected: dict[str, Any]) -> None:
    text = f"listener 1885 10.0.0.1\n{lines}\n"
    (listener,) = listeners_of(text)
    usual = {"name": "port-1885", "host": "10.0.0.1", "port": 1885, "allow_anonymous": False}
    assert listener == {**usual, **expected}
    assert_accounted(text)


def test_a_unix_socket() -> None:
    (listener,) = listeners_of("listener 0 /run/m.sock\nallow_anonymous true\n")
    assert listener == {
        "name": "unix", "type": "unix", "path": "/run/m.sock", "allow_anonymous": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "lines",
    [
        "psk_hint x",
        "certfile /c.pem",
        "keyfile /k.pem",
        f"{TLS}require_certificate true",
        f"{TLS}use_identity_as_username true",
        f"{TLS}tls_keyform engine",
        "mount_point plant",
        "mount_point /",
        "mount_point $a/",
        "protocol http_api",
        "accept_protocol_versions 2",
        "protocol websockets\nwebsockets_origin *",
        "enable_proxy_protocol 2\nproxy_protocol_v2_require_tls true",
    ],
)
def test_a_listener_that_cannot_be_as_strict_is_left_out(lines: str) -> None:
    """What kept clients out cannot be converted: nobody may come in by the listener instead."""
    text = f"listener 1885\n{lines}\nallow_anonymous true\nlistener 1886 127.0.0.1\n"
    conversion = assert_accounted(text)
    assert [each["port"] for each in written(conversion)["mqtt"]["listeners"]] == [1886]
    said = [each for each in remarks(conversion, Kind.MISSING) if "is not converted: " in each]
    assert len(said) == 1
    assert "the listener (port 1885)" in said[0]


def test_prefixes_of_client_ids_leave_out_every_listener() -> None:
    """They are for the whole of mosquitto: whoever calls itself otherwise stays out."""
    lines = "allow_anonymous true\nclientid_prefixes dev-\n"
    for text in (lines, f"{lines}listener 1885\nlistener 1886 ::1\nmax_qos 1\n"):
        conversion = assert_accounted(text)
        assert "listeners" not in written(conversion)["mqtt"]
        assert "server" not in written(conversion)
        said = [each for each in remarks(conversion, Kind.MISSING) if "is not converted: " in each]
        assert len(said) == max(1, text.count("\nlistener"))
        assert all(each.startswith("m.conf:2: clientid_prefixes: ") for each in said)


@pytest.mark.parametrize(
    "listener",
    [
        "listener 0 relative.sock",
        f"listener 0 /{'x' * 120}",
        f"listener 0 /run/m.sock\n{TLS}",
        "listener 0 /run/m.sock\nprotocol websockets",
        "listener 0 /run/m.sock\nenable_proxy_protocol 2",
        "listener 1885 two words",
        "bind_address two words",
    ],
)
def test_addresses_that_cannot_be_opened_are_left_out(listener: str) -> None:
    conversion = assert_accounted(f"{listener}\n")
    assert "listeners" not in written(conversion)["mqtt"]
    assert len([each for each in remarks(conversion) if "is not converted: " in each]) == 1


def test_two_listeners_of_one_address() -> None:
    """The second one is named; mosquitto does not start with two of one port."""
    text = "listener 0 /run/a\nlistener 0 /run/a\nlistener 5 ::1\nlistener 5 ::1\nlistener 5\n"
    conversion = assert_accounted(text)
    listeners = written(conversion)["mqtt"]["listeners"]
    assert [each["name"] for each in listeners] == ["unix", "port-5", "port-5-3"]
    assert len(remarks(conversion, Kind.MISSING)) == 2


def test_a_file_whose_listeners_are_all_left_out_is_written() -> None:
    settings = Settings(**settings_of("listener 1885\nmount_point plant\n"))
    assert not settings.mqtt.enabled
    assert not settings.mqtt.listeners


def test_the_quality_of_service_and_aliases_are_those_of_all_listeners() -> None:
    """The setting is one for all, so no client loses a QoS that it had."""
    text = "listener 1\nmax_qos 1\nlistener 2\n"
    assert "qos_max" not in settings_of(text)["mqtt"] or settings_of(text)["mqtt"]["qos_max"] == 2
    assert any("mqtt.qos_max is for all listeners" in each for each in remarks(converted(text)))
    both = "listener 1\nmax_qos 1\nlistener 2\nmaximum_qos 0\nmax_topic_alias_broker 70\n"
    assert settings_of(both)["mqtt"]["qos_max"] == 1
    assert settings_of(both)["mqtt"]["topic_aliases_out_max"] == 70


def test_ports_of_other_protocols_give_way() -> None:
    """mosquitto's examples have WebSocket at 8080, where HTTP is here."""
    settings = settings_of("listener 8080\nlistener 8081\nlistener 5672\nlistener 9464\n")
    assert settings["http"] == {"port": 8082}
    assert settings["amqp"] == {"port": 5673}
    assert settings["admin"] == {"port": 9465}


@pytest.mark.parametrize(
    ("text", "insecure", "steps"),
    [
        ("listener 1885\nallow_anonymous true\n", True, []),
        ("listener 1885 127.0.0.1\nallow_anonymous true\n", None, []),
        ("listener 1885\n", None, ["polymq user add NAME --role admin"]),
        ("listener 1885\nallow_anonymous true\npassword_file /my pw\n", None,
         ["polymq user import mosquitto-passwords '/my pw'",
          "polymq permission allow role:mosquitto publish,create,subscribe '#'",
          "polymq permission allow role:anonymous publish,create,subscribe '#'"]),
        ("listener 1885\npassword_file /p\nacl_file /a\n", None,
         ["polymq user import mosquitto-passwords /p",
          "polymq permission import mosquitto-acl /a"]),
        ("listener 1885\nallow_anonymous true\nacl_file /a\n", None,
         ["polymq user add NAME --role admin", "polymq permission import mosquitto-acl /a"]),
        (f"listener 1885\n{TLS}cafile /a\nuse_identity_as_username true\n", None,
         ["polymq user add NAME --role mosquitto",
          "polymq permission allow role:mosquitto publish,create,subscribe '#'"]),
        (f"listener 1885\n{TLS}cafile /a\nuse_identity_as_username 1\nallow_anonymous 1\n", None,
         ["polymq user add NAME --role mosquitto",
          "polymq permission allow role:mosquitto publish,create,subscribe '#'"]),
        ("listener 1885\nallow_anonymous true\nplugin /p.so\n", None,
         ["polymq user add NAME --role admin"]),
        ("listener 1885 127.0.0.1\nallow_anonymous true\nenable_proxy_protocol 1\n", True, []),
    ],
)  # fmt: skip
def test_what_is_left_to_do(text: str, insecure: bool | None, steps: list[str]) -> None:
    """A server without users lets everybody in only if mosquitto did, and had no users either."""
    conversion = assert_accounted(text)
    assert written(conversion).get("server", {}).get("allow_insecure") is insecure
    assert [command for command, _ in conversion.steps] == steps


def test_users_and_rules_of_one_listener() -> None:
    """Here they are for all listeners, which may be more or less than before."""
    text = "per_listener_settings true\nlistener 1\npassword_file /p\nacl_file /a\n"
    assert remarks(assert_accounted(text), Kind.MISSING) == []
    conversion = assert_accounted(f"{text}listener 2\nallow_anonymous true\n")
    assert remarks(conversion, Kind.MISSING) == [
        "m.conf:3: password_file: it is for all listeners here, not for one",
        "m.conf:4: acl_file: it is for all listeners here, not for one",
    ]


MORE_LINES = """\
listener 1885
listener 0 /run/a
listener 1886 ::1
port 99
cafile /ca
protocol mqtt
require_certificate false
allow_anonymous false
mount_point a
max_connections -1
socket_domain ipv6
tls_keyform engine
# c
nonsense
persistence_location /a\x7f"\\
password_file
"""
LINES = st.sampled_from([*map(example, OPTIONS.values()), *MORE_LINES.splitlines(keepends=True)])


@given(st.lists(LINES, max_size=30))
def test_any_lines(lines: list[str]) -> None:
    """Whatever stands together: nothing is lost, and what is written loads."""
    conversion = assert_accounted("".join(lines))
    Settings(**tomllib.loads(write_toml(conversion, "m.conf")))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name.replace("*", "x") for name in OPTIONS]),
            st.text(max_size=20).map(lambda text: text.replace("\n", "")),
        ),
        max_size=4,
    )
)
def test_any_values(lines: list[tuple[str, str]]) -> None:
    """Whatever the values are, what is accepted loads."""
    text = "listener 1885\nprotocol websockets\n" + "".join(f"{a} {b}\n" for a, b in lines)
    conversion = assert_accounted(text)
    if not conversion.has(Kind.WRONG):
        Settings(**written(conversion))
