"""Configuration: what wins over what, and what a user reads who got it wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from polymq.errors import ExitCode, Failure
from polymq.render import render_markdown, render_toml
from polymq.settings import Settings, is_loopback, load_settings, setting_paths

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No polymq.toml of the tree and no variable of the developer takes part."""
    monkeypatch.chdir(tmp_path)
    for name in ("POLYMQ_CONFIG", "POLYMQ_KERNELS"):
        monkeypatch.delenv(name, raising=False)


def refusal(**arguments: Any) -> str:
    with pytest.raises(Failure) as caught:
        load_settings(**arguments)
    assert caught.value.code == ExitCode.USAGE
    assert "\n" not in caught.value.text
    return caught.value.text


def test_defaults_without_any_source() -> None:
    settings = load_settings()
    assert settings.mqtt.port == 1883
    assert settings.server.host == "127.0.0.1"


def test_flag_wins_over_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[mqtt]\nport = 1\nconnections_max = 5\n[amqp]\nport = 2\n[http]\nport = 3\n")
    monkeypatch.setenv("POLYMQ_AMQP__PORT", "20")
    monkeypatch.setenv("POLYMQ_HTTP__PORT", "30")
    settings = load_settings(file=file, flags={"http": {"port": 300}})
    assert (settings.mqtt.port, settings.amqp.port, settings.http.port) == (1, 20, 300)
    assert settings.mqtt.connections_max == 5


def test_file_is_found_in_the_working_directory_or_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("polymq.toml").write_text("[mqtt]\nport = 7\n")
    assert load_settings().mqtt.port == 7
    Path("other.toml").write_text("[mqtt]\nport = 8\n")
    monkeypatch.setenv("POLYMQ_CONFIG", "other.toml")
    assert load_settings().mqtt.port == 8


def test_list_in_the_environment_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMQ_SINK__TOPICS", '["sensors", "orders"]')
    assert load_settings().sink.topics == ["sensors", "orders"]
    monkeypatch.setenv("POLYMQ_SINK__TOPICS", "[")
    assert refusal().startswith("environment: ")


def test_misspelt_key_names_the_file_and_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text("[mqtt]\nprot = 1\n")
    assert refusal(file=file) == (
        f"{file}: there is no setting mqtt.prot (did you mean mqtt.port?)"
    )


def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMQ_MQTT__PROT", "1")
    assert "there is no setting mqtt.prot" in refusal()
    monkeypatch.delenv("POLYMQ_MQTT__PROT")
    monkeypatch.setenv("POLYMQ_PORT", "1")
    assert refusal().startswith("environment variable POLYMQ_PORT is not a setting")


def test_variables_that_are_not_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMQ_KERNELS", "pure")
    monkeypatch.setenv("POLYMQ_USER", "ann")
    monkeypatch.setenv("POLYMQ_PASSWORD_FILE", "/none")
    assert load_settings() == Settings()


def test_a_data_directory_without_a_name_is_refused() -> None:
    """It comes from a variable of a script that is not set, and would be the working directory."""
    text = refusal(flags={"server": {"data_directory": ""}})
    assert text.startswith("option: server.data_directory: must not be empty")


def test_an_address_without_a_name_is_refused() -> None:
    """The system would say that it cannot be resolved, of the first listener that there is."""
    text = refusal(flags={"server": {"host": ""}})
    assert text.startswith("option: server.host: must not be empty; '0.0.0.0' is every address")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("\udcff", "is UTF-8"),
        ("a\nb", "control characters"),
        ("SCHEDULE_TOPIC_XXXX", "is the server's own"),
    ],
)
def test_all_messages_need_a_topic_that_can_take_them(name: str, reason: str) -> None:
    text = refusal(flags={"mqtt": {"topic": name}})
    assert text.startswith("option: mqtt.topic: ")
    assert reason in text


@pytest.mark.parametrize("path", ["", "mqtt", "/a b", "/a?b", "/a#b", "/\xfc"])
def test_a_path_for_websocket_is_one_of_a_url(path: str) -> None:
    text = refusal(flags={"mqtt": {"websocket_path": path}})
    assert text.startswith("option: mqtt.websocket_path: the path of a URL begins with /")


@pytest.mark.parametrize("text", ["a/{topic}/", "a/{", "a/+/", "#", "$x/", "a\n"])
def test_response_information_is_the_beginning_of_a_topic_name(text: str) -> None:
    assert "mqtt.response_information: " in refusal(flags={"mqtt": {"response_information": text}})


@pytest.mark.parametrize("text", [" a", "a  b", "a\n", "\xe9", "a" * 1001])
def test_a_server_reference_is_a_list_of_hosts(text: str) -> None:
    assert "mqtt.server_reference: " in refusal(flags={"mqtt": {"server_reference": text}})


@pytest.mark.parametrize("origin", ["", "app.example", "https://", "https://a/", "https://a/b"])
def test_an_origin_has_nothing_behind_its_port(origin: str) -> None:
    """A browser sends none with a slash, so it would be refused for ever."""
    text = refusal(flags={"mqtt": {"websocket_origins": [origin]}})
    assert "an origin is SCHEME://HOST" in text
    flags = {"mqtt": {"websocket_origins": ["https://a.example:8443", "app://b", "null"]}}
    assert len(load_settings(flags=flags).mqtt.websocket_origins) == 3


def test_wrong_value_names_source_key_and_value() -> None:
    text = refusal(flags={"mqtt": {"port": 70000}})
    assert text.startswith("option: mqtt.port: ")
    assert "65535" in text
    assert "70000" in text


def test_of_a_long_value_the_beginning_is_shown() -> None:
    """The line is for people."""
    text = refusal(flags={"names": {"cluster": "x y" * 10_000}})
    assert "names.cluster: " in text
    assert "(got 'x yx y" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("content", "expected"), [("[mqtt", "is not TOML"), ("\xff", "is not TOML")]
)
def test_broken_file(tmp_path: Path, content: str, expected: str) -> None:
    file = tmp_path / "some.toml"
    file.write_bytes(content.encode("latin-1"))
    assert expected in refusal(file=file)


def test_missing_file_that_was_named(tmp_path: Path) -> None:
    assert refusal(file=tmp_path / "none.toml").startswith("cannot read the configuration")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("broker.example", False),
    ],
)
def test_which_hosts_only_this_machine_reaches(host: str, expected: bool) -> None:
    """On any other the server lets nobody in before its first user is made."""
    assert is_loopback(host) is expected
    assert not load_settings(flags={"server": {"host": host}}).server.allow_insecure


def test_example_file_is_the_model() -> None:
    """`polymq serve --print-config > polymq.example.toml` after a change of the model."""
    example = (ROOT / "polymq.example.toml").read_text(encoding="utf-8")
    assert example == render_toml(Settings())


def test_example_file_read_back_gives_the_defaults() -> None:
    """Every commented key, uncommented, is legal and has the value that it shows."""
    lines = (ROOT / "polymq.example.toml").read_text(encoding="utf-8").splitlines()
    uncommented = [line.removeprefix("#") for line in lines if not line.startswith("# ")]
    values = tomllib.loads("\n".join(uncommented))
    assert Settings(**values) == Settings()
    keys = {f"{section}.{key}" for section, table in values.items() for key in table}
    assert keys == {path for path in setting_paths() if "." in path}


def test_changed_values_are_printed_without_comment() -> None:
    settings = load_settings(flags={"mqtt": {"port": 9}, "sink": {"topics": ['a"b']}})
    text = render_toml(settings)
    assert "\nport = 9\n" in text
    assert tomllib.loads(text)["sink"]["topics"] == ['a"b']


def test_listeners_are_printed_as_tables() -> None:
    """What is printed is the same configuration, read back."""
    listeners = [
        {"name": "a", "port": 1, "protocol_versions": ["5"]},
        {"name": "b", "type": "unix", "path": "/run/b"},
    ]
    settings = load_settings(flags={"mqtt": {"listeners": listeners, "port": 9}})
    text = render_toml(settings)
    assert text.count("\n[[mqtt.listeners]]\n") == 2
    assert Settings(**tomllib.loads(text)) == settings


def test_a_listener_as_the_example_shows_it() -> None:
    """The lines of the example below `[[mqtt.listeners]]` are legal, with the defaults."""
    example = (ROOT / "polymq.example.toml").read_text(encoding="utf-8")
    lines = [line[4:] for line in example.splitlines() if line.startswith("#   ")]
    (listener,) = Settings(**tomllib.loads("\n".join(lines))).mqtt.listeners
    assert listener == type(listener)(name="plant")


@pytest.mark.parametrize(
    ("listener", "text"),
    [
        ({"name": "a", "nmae": 1}, "there is no setting mqtt.listeners[0].nmae (did you mean mqtt"),
        ({"name": "a", "zzz": 1}, "there is no setting mqtt.listeners[0].zzz"),
        ({}, "mqtt.listeners[0].name is not set: it has no default"),
        ({"name": "a", "port": "x"}, "mqtt.listeners[0].port: input should be a valid integer"),
        ({"name": "a", "mode": "8"}, "mqtt.listeners[0].mode: file permissions are octal"),
        ({"name": "a", "mount_point": "plant"}, "ends with /, as in plant/ (got 'plant')"),
        ({"name": "a", "mount_point": "$x/"}, "does not begin with $"),
        ({"name": "a", "type": "unix", "path": "x"}, "the path of a Unix socket begins with /"),
        ({"name": "a", "type": "unix", "path": "/" + "x" * 107}, "at most 107 bytes"),
        ({"name": "a", "type": "unix", "path": "/x", "port": 1}, "port is not for a listener of"),
        ({"name": "a", "type": "unix", "path": "/x", "tls": True}, "tls is not for a listener of"),
        ({"name": "a", "tls": True, "tls_key": "k"}, "set tls_certificate and tls_key together"),
        ({"name": "a", "proxy_user": True}, "proxy_user needs proxy_protocol = true"),
    ],
)
def test_what_is_wrong_with_a_listener(tmp_path: Path, listener: dict[str, Any], text: str) -> None:
    """One line: the file, the listener, the key, and what is right."""
    file = tmp_path / "some.toml"
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in listener.items())
    file.write_text(f"[[mqtt.listeners]]\n{keys}")
    found = refusal(file=file)
    assert found.startswith(f"{file}: ")
    assert text in found
    assert "\n" not in found


def test_documentation_has_the_tables_of_the_model() -> None:
    """docs/configuration.md ends with the tables as the model prints them."""
    assert render_markdown() in (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("old", "new"), [("cluster", "names.cluster"), ("group", "names.broker")])
def test_names_of_a_group_are_said_once(old: str, new: str) -> None:
    """Replication had settings of its own for what name servers have to know, too."""
    with pytest.raises(Failure, match=f"replication.{old} is now named {new}"):
        load_settings(flags={"replication": {old: "x"}})


FLOATS = [
    (section, key)
    for section, table in Settings.model_fields.items()
    for key, field in table.annotation.model_fields.items()  # type: ignore[union-attr]
    if field.annotation is float
]


NUMBERS = [
    (section, key)
    for section, table in Settings.model_fields.items()
    for key, field in table.annotation.model_fields.items()  # type: ignore[union-attr]
    if field.annotation in (int, float, int | None)
]


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(("section", "key"), [*NUMBERS, ("mqtt", "bridges"), ("mqtt", "listeners")])
def test_true_is_no_number(section: str, key: str, value: bool) -> None:
    """Python would take it for one. Text is taken: options and variables are text."""
    if key == "bridges":
        topics = [{"qos": value}]
        found = refusal(flags={section: {key: [{"name": "b", "topics": topics}]}})
        key = "bridges[0].topics[0].qos"
    elif key == "listeners":
        found = refusal(flags={section: {key: [{"name": "b", "port": value}]}})
        key = "listeners[0].port"
    else:
        found = refusal(flags={section: {key: value}})
    assert found.startswith(f"option: {section}.{key}: a number is wanted, not true or false")


def test_numbers_may_be_text() -> None:
    flags = {"mqtt": {"port": "1", "retained_max": "7"}, "http": {"enabled": True}}
    assert load_settings(flags=flags).mqtt.port == 1


@pytest.mark.parametrize(("section", "key"), FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", float("inf"), float("nan")])
def test_numbers_are_finite(section: str, key: str, value: str | float) -> None:
    """An endless interval would be one that never comes."""
    assert f"{section}.{key}: input should be" in refusal(flags={section: {key: value}})


def test_all_settings_in_seconds_are_looked_at() -> None:
    assert ("storage", "save_seconds") in FLOATS
    assert len(FLOATS) >= 6
