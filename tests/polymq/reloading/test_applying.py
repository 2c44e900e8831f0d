"""A reload of a server that runs: every setting that is said to be applied is."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from polymq.compose import Node
from polymq.errors import ExitCode, Failure
from polymq.listener_settings import MqttListener
from polymq.log_limits import LineLimit
from polymq.logs import configure_logs
from polymq.mqtt_listeners import owner_of
from polymq.open_store import open_store
from polymq.reloading.changes import APPLIED, Change
from polymq.reloading.reloader import Reloader
from polymq.service_manager import ServiceManager
from polymq.setting_kinds import Reload, reload_of
from polymq.settings import SECTIONS, Settings, load_settings

FILES = Path(__file__).parents[3] / "interop_tests" / "certificates"
Look = Callable[[Node], Any]


def of_server(node: Node, label: str) -> Any:
    return node._servers[label]


def limits(label: str, name: str) -> Look:
    return lambda node: getattr(of_server(node, label)._shared.limits, name)


def feature(name: str) -> Look:
    return lambda node: getattr(of_server(node, "mqtt")._shared.limits.features, name)


def tls_of(name: str, owner: str = "") -> Look:
    def look(node: Node) -> Any:
        (found, *_) = (one for one in node._tls_files._renewed if one.owner == owner)
        return getattr(found.settings, name)

    return look


def listener_tls(name: str) -> Look:
    return tls_of(name, owner_of(MqttListener(name="secure")))


def engine_limit(name: str) -> Look:
    return lambda node: getattr(node.engine.core.limits, name)


def calls(part: str, name: str) -> Look:
    return lambda node: getattr(getattr(node.engine, part)._limits, name)


def connection_limit(name: str) -> Look:
    return lambda node: getattr(node.engine.connections._settings, name)


def flapping(name: str) -> Look:
    return lambda node: getattr(node.engine.connections._flapping, name)


def share(label: str) -> Look:
    return lambda node: node._servers[label].rosters[0]._share.limit


def tokens(name: str) -> Look:
    return lambda node: getattr(node._outside._tokens._settings, name)  # type: ignore[union-attr]


def service(part: str, name: str) -> Look:
    return lambda node: getattr(getattr(node._outside, part)._settings, name)


def webhook(name: str) -> Look:
    return lambda node: getattr(of_server(node, "http")._sinks._policy, name)


def asked(section: str, part: str, engine_part: str) -> dict[str, tuple[Any, Look]]:
    """What both services that are asked have."""
    return {
        f"{section}.url": ("http://localhost:9/other", service(part, "url")),
        f"{section}.plain_hosts": (["elsewhere"], service(part, "plain_hosts")),
        f"{section}.ca": ("NEW_CERTIFICATE", service(part, "ca")),
        f"{section}.header_file": ("HEADER", service(part, "header_file")),
        f"{section}.timeout_seconds": (1.5, calls(engine_part, "wait_seconds_max")),
        f"{section}.calls_max": (3, calls(engine_part, "calls_max")),
        f"{section}.waiting_max": (
            4,
            lambda node: getattr(node.engine, engine_part)._lines.count_max,
        ),
        f"{section}.cache_max": (
            5,
            lambda node: getattr(node.engine, engine_part)._known.count_max,
        ),
        f"{section}.cache_seconds": (6.0, calls(engine_part, "cache_seconds")),
        f"{section}.denied_cache_seconds": (7.0, calls(engine_part, "denied_cache_seconds")),
    }


EFFECTS: dict[str, tuple[Any, Look]] = {
    "server.drain_seconds": (0.3, lambda node: node.settings.server.drain_seconds),
    "tls.certificate": ("NEW_CERTIFICATE", tls_of("certificate")),
    "tls.key": ("NEW_KEY", tls_of("key")),
    "tls.client_ca": ("CA", tls_of("client_ca")),
    "tls.client_certificates": ("optional", tls_of("client_certificates")),
    "tls.check_files_seconds": (77.0, lambda node: node._tls_watch._seconds),
    "login.scram_iterations": (4096, lambda node: node.engine.scram_logins.iterations),
    **asked("login_service", "_service", "service_logins"),
    **asked("permission_service", "_permissions", "service_permissions"),
    "jwt.secret_file": ("SECRET", tokens("secret_file")),
    "jwt.issuer": ("other", tokens("issuer")),
    "jwt.audience": ("others", tokens("audience")),
    "jwt.user_claim": ("name", tokens("user_claim")),
    "jwt.leeway_seconds": (5.0, tokens("leeway_seconds")),
    "jwt.jwks_refresh_seconds": (20.0, tokens("jwks_refresh_seconds")),
    "mqtt.connections_max": (21, share("mqtt")),
    "mqtt.websocket_path": (
        "/other",
        lambda node: sorted(of_server(node, "mqtt_ws")._websocket.paths)[1],
    ),
    "mqtt.websocket_origins": (
        ["https://a.example"],
        lambda node: list(of_server(node, "mqtt_ws")._websocket.origins),
    ),
    "mqtt.inflight_max": (22, limits("mqtt", "inflight_max")),
    "mqtt.subscriptions_max": (23, engine_limit("subscriptions_per_session_max")),
    "mqtt.session_expiry_seconds": (24.0, lambda node: node.engine.sessions.expiry._ms_max / 1000),
    "mqtt.session_queue_max": (25, lambda node: node.engine.sessions.backlogs._waiting_max),
    "mqtt.session_queue_bytes_max": (
        28_000,
        lambda node: getattr(node.engine.sessions.backlogs._bytes, "max", None),
    ),
    "mqtt.keep_alive_seconds_max": (26, feature("keep_alive_seconds_max")),
    "mqtt.receive_max": (29, limits("mqtt", "receive_max")),
    "mqtt.topic_aliases_out_max": (27, limits("mqtt", "topic_aliases_out_max")),
    "mqtt.qos_max": (1, feature("qos_max")),
    "mqtt.retain_available": (False, feature("retain")),
    "mqtt.wildcards_available": (False, feature("wildcards")),
    "mqtt.subscription_identifiers_available": (False, feature("subscription_identifiers")),
    "mqtt.check_payload_format": (True, feature("payload_format_checked")),
    "mqtt.response_information": ("answers/", feature("response_information")),
    "mqtt.server_reference": ("other.example", feature("server_reference")),
    "mqtt.shared_subscriptions": (False, feature("shared_subscriptions")),
    "mqtt.topic_levels_max": (
        28,
        lambda node: of_server(node, "mqtt")._shared.mapping._levels_max,
    ),
    "mqtt.retained_max": (29, lambda node: node.engine.retained._count_max),
    "mqtt.retained_bytes_max": (30, lambda node: node.engine.retained._bytes_max),
    "mqtt.connections_per_address_max": (31, connection_limit("per_address_max")),
    "mqtt.connects_per_second_max": (32.0, connection_limit("per_second")),
    "mqtt.connects_per_second_per_address_max": (33.0, connection_limit("per_address_per_second")),
    "mqtt.flapping_count": (34, flapping("_count")),
    "mqtt.flapping_window_seconds": (35.0, flapping("_window")),
    "mqtt.flapping_ban_seconds": (36.0, flapping("_ban")),
    "mqtt.sys_interval_seconds": (37.0, lambda node: node._sys_topics.values._interval),  # type: ignore[union-attr]
    "mqtt.rewrite": (
        [{"source": "old", "destination": "new"}],
        lambda node: [
            {"source": rule.source, "destination": rule.destination}
            for rule in of_server(node, "mqtt")._shared.mapping._rewriting._rules
        ],
    ),
    "mqtt.auto_subscribe": (
        [{"filter": "news"}],
        lambda node: [
            {"filter": one.filter} for one in of_server(node, "mqtt")._shared.auto_subscriptions
        ],
    ),
    "amqp.connections_max": (41, share("amqp")),
    "http.connections_max": (42, share("http")),
    "http.subscriptions_max": (
        43,
        lambda node: of_server(node, "http")._registry._shared.limits.subscriptions_max,
    ),
    "http.webhook_handshake": (
        False,
        lambda node: of_server(node, "http")._registry._handshake,
    ),
    "http.webhook_allow_http": (True, webhook("_allow_http")),
    "http.webhook_allow_networks": (
        ["10.1.0.0/16"],
        lambda node: [str(one) for one in webhook("_allow")(node)],
    ),
    "http.webhook_deny_networks": (
        ["8.8.0.0/16"],
        lambda node: [str(one) for one in webhook("_deny")(node)],
    ),
    "rocketmq.connections_max": (44, share("rocketmq")),
    "storage.log_bytes_max": (1 << 40, lambda node: node.engine.core.disk.settings.log_bytes_max),
    "storage.save_seconds": (51.0, lambda node: node._upkeep._save_seconds),
    "storage.disk_reserve_bytes": (52, lambda node: node.engine.core.disk.settings.reserve_bytes),
    "storage.disk_early_bytes": (53, lambda node: node.engine.core.disk.settings.early_bytes),
    "storage.disk_full_drops_oldest": (
        True,
        lambda node: node.engine.core.disk.settings.drop_oldest,
    ),
    "storage.disk_check_seconds": (54.0, lambda node: node._upkeep._disk_seconds),
    "storage.retention_check_seconds": (55.0, lambda node: node._upkeep._tidy_seconds),
    "topics.durability": (
        "page_cache",
        lambda node: node.engine.topics.topics["there"].settings.values()["durability"],
    ),
    "topics.retention_seconds": (
        61,
        lambda node: node.engine.topics.topics["there"].settings.retention_seconds,
    ),
    "topics.retention_bytes": (
        62,
        lambda node: node.engine.topics.topics["there"].settings.retention_bytes,
    ),
    "log.level": ("warning", lambda _: logging.getLevelName(logging.getLogger().level).lower()),
    "log.format": ("console", lambda _: log_format()),
}
LISTENER_EFFECTS: dict[str, tuple[Any, Look]] = {
    "websocket_path": (
        "/other",
        lambda node: sorted(of_server(node, "mqtt-secure")._websocket.paths)[1],
    ),
    "websocket_origins": (
        ["https://b.example"],
        lambda node: list(of_server(node, "mqtt-secure")._websocket.origins),
    ),
    "tls_certificate": ("NEW_CERTIFICATE", listener_tls("certificate")),
    "tls_key": ("NEW_KEY", listener_tls("key")),
    "tls_client_ca": ("CA", listener_tls("client_ca")),
    "tls_client_certificates": ("optional", listener_tls("client_certificates")),
    "protocol_versions": (
        ["5"],
        lambda node: [
            {3: "3.1", 4: "3.1.1", 5: "5"}[level]
            for level in of_server(node, "mqtt-secure")._shared.rules.levels
        ],
    ),
    "allow_anonymous": (
        False,
        lambda node: of_server(node, "mqtt-secure")._shared.rules.allow_anonymous,
    ),
    "connections_max": (71, share("mqtt-secure")),
    "connection_rate_max": (
        72.0,
        lambda node: getattr(of_server(node, "mqtt-secure")._listener._rate, "_per_second", 0),
    ),
    "packet_bytes_max": (1073, limits("mqtt-secure", "packet_bytes_max")),
}
ELSEWHERE = {
    "tls.crl": "the authority here has no list; that of `test_revocation_and_renewal_...` has",
    "jwt.public_key_file": "instead of the secret; it is read where that is",
    "jwt.jwks_file": "likewise",
    "jwt.jwks_url": "`test_a_set_of_keys_is_fetched_from_another_url`",
    "jwt.jwks_ca": "likewise",
    "mqtt.listeners.tls_crl": "as `tls.crl`",
    "telemetry.endpoint": "`interop_tests/test_telemetry.py`, which needs the extra",
    "telemetry.plain_hosts": "likewise, with the endpoint",
    "telemetry.ca": "likewise, with the header",
    "telemetry.header_file": "likewise",
    "telemetry.interval_seconds": "likewise",
    "telemetry.timeout_seconds": "likewise",
    "telemetry.spans_per_second_max": "likewise",
}
"""Settings that cannot be beside the others, and where they are tested."""


def log_format() -> str:
    (handler,) = (
        one
        for one in logging.getLogger().handlers
        if any(isinstance(found, LineLimit) for found in one.filters)
    )
    text = handler.format(logging.LogRecord("x", logging.ERROR, "", 1, "hello", None, None))
    return "json" if text.startswith("{") else "console"


class Stage:
    """A server with every part that a reload changes, and the file of its configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("", "new-"):
            shutil.copy(FILES / "server.pem", directory / f"{name}server.pem")
            shutil.copy(FILES / "server.key", directory / f"{name}server.key")
            (directory / f"{name}server.key").chmod(0o600)
        for name, text in (
            ("secret", "s" * 40),
            ("new-secret", "n" * 40),
            ("header", "Authorization: Bearer abc"),
        ):
            (directory / name).write_text(text)
            (directory / name).chmod(0o600)
        tls = {
            "certificate": str(directory / "server.pem"),
            "key": str(directory / "server.key"),
        }
        ports = {"port": 0, "tls_port": 0}
        secure = {"name": "secure", "type": "websocket", "tls": True}
        own_tls = {f"tls_{key}": value for key, value in tls.items()}
        self.values: dict[str, Any] = {
            "server": {"data_directory": str(directory / "data"), "drain_seconds": 0.2},
            "tls": {**tls, "check_files_seconds": 0},
            "mqtt": {
                **ports,
                "websocket": True,
                "websocket_port": 0,
                "websocket_tls_port": 0,
                "session_queue_max": 1000,
                "session_queue_bytes_max": 100_000,
                "listeners": [{**secure, **own_tls}],
            },
            "amqp": dict(ports),
            "http": dict(ports),
            "rocketmq": dict(ports),
            "names": {"enabled": False},
            "admin": {"port": 0},
            "storage": {"segment_bytes": 1024 * 1024, "disk_reserve_bytes": 1},
            "jwt": {"secret_file": str(directory / "secret"), "issuer": "i", "audience": "a"},
            "login_service": {"url": "http://localhost:9/"},
            "permission_service": {"url": "http://localhost:9/"},
            "log": {"format": "json", "level": "info"},
        }

    def value(self, value: Any) -> Any:
        """What a name in a table above stands for."""
        named = {
            "NEW_CERTIFICATE": self.directory / "new-server.pem",
            "NEW_KEY": self.directory / "new-server.key",
            "CA": FILES / "ca.pem",
            "SECRET": self.directory / "new-secret",
            "HEADER": self.directory / "header",
        }
        return str(named[value]) if isinstance(value, str) and value in named else value

    def load(self) -> Settings:
        return load_settings(flags=self.values)

    def run(self, scenario: Callable[[Node, Reloader], Awaitable[None]]) -> None:
        """Let a server run while the scenario does."""

        async def main() -> None:
            settings = self.load()
            configure_logs(settings.log)
            reloader = Reloader(self.load, settings, ServiceManager({}))
            store = open_store(settings)
            node = Node(settings, store, reloader=reloader)
            try:
                await node.start()
                reloader.server = node
                await scenario(node, reloader)
            finally:
                reloader.server = None
                await node.stop()
                store.close()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_every_setting_that_is_applied_has_an_effect_here() -> None:
    """Whoever marks another setting says here where it is looked at."""
    marked = {
        f"{section}.{key}"
        for section, model in SECTIONS.items()
        for key, field in model.model_fields.items()
        if reload_of(model, field) in APPLIED
    }
    of_listeners = {
        key
        for key, field in MqttListener.model_fields.items()
        if reload_of(MqttListener, field) in APPLIED
    }
    elsewhere = {name for name in ELSEWHERE if not name.startswith("mqtt.listeners.")}
    assert marked == EFFECTS.keys() | elsewhere
    assert of_listeners == LISTENER_EFFECTS.keys() | {"tls_crl"}


def test_a_reload_applies_every_setting(stage: Stage) -> None:
    """All at once, in a server that has all parts; and the answer names each of them."""

    async def scenario(node: Node, reloader: Reloader) -> None:
        node.engine.topics.create("there", 1, {})
        looks = {
            **EFFECTS,
            **{f"mqtt.listeners[secure].{key}": it for key, it in LISTENER_EFFECTS.items()},
        }
        for name, (value, look) in looks.items():
            assert look(node) != stage.value(value), name
        for name, (value, _) in EFFECTS.items():
            section, _, key = name.partition(".")
            stage.values.setdefault(section, {})[key] = stage.value(value)
        (listener,) = stage.values["mqtt"]["listeners"]
        listener.update({key: stage.value(value) for key, (value, _) in LISTENER_EFFECTS.items()})
        outcome = await reloader.reload()
        assert {one.name for one in outcome.applied} == looks.keys()
        assert outcome.restart == []
        node.engine.core.sweeper.finish()
        found = {name: look(node) for name, (_, look) in looks.items()}
        assert found == {name: stage.value(value) for name, (value, _) in looks.items()}
        assert not (await reloader.reload()).changes

    stage.run(scenario)


@pytest.mark.parametrize(
    ("section", "key", "value", "text"),
    [
        ("mqtt", "inflight_max", -1, "mqtt.inflight_max"),
        ("mqtt", "nonsense", 1, "there is no setting mqtt.nonsense"),
        ("tls", "certificate", "/no/such.pem", "tls.certificate: /no/such.pem cannot be read"),
        ("tls", "key", "MISMATCH", "tls.key"),
        ("jwt", "secret_file", "/no/secret", "jwt.secret_file"),
        ("names", "access_key", "k", "names.access_key and names.secret_key_file have to be set"),
        ("login_service", "header_file", "/no/header", "login_service.header_file"),
    ],
)
def test_a_wrong_configuration_changes_nothing(
    stage: Stage, section: str, key: str, value: object, text: str
) -> None:
    """Not even what is right in it."""
    if value == "MISMATCH":
        other = stage.directory / "client.key"
        shutil.copy(FILES / "client.key", other)
        other.chmod(0o600)
        value = str(other)

    async def scenario(node: Node, reloader: Reloader) -> None:
        contexts = [one.current() for one in node._tls_files._renewed]
        stage.values[section][key] = value
        stage.values["mqtt"]["retained_max"] = 7
        before = node.settings
        with pytest.raises(Failure, match=text) as caught:
            await reloader.reload()
        assert caught.value.code is ExitCode.USAGE
        assert "\n" not in caught.value.text
        assert node.settings is before
        assert node.engine.retained._count_max == 1_000_000
        assert [one.current() for one in node._tls_files._renewed] == contexts
        assert reloader.probes()[0].read() == {"applied": 0, "failed": 1}

    stage.run(scenario)


def test_what_needs_a_restart_is_named_by_each_reload(stage: Stage) -> None:
    """And what is applied goes into force beside it."""

    async def scenario(node: Node, reloader: Reloader) -> None:
        stage.values["mqtt"] |= {"port": 1999, "retained_max": 7}
        stage.values["sink"] = {"topics": ["a"]}
        first, second = await reloader.reload(), await reloader.reload()
        named = [
            Change(name="mqtt.port", old="0", new="1999", reload=Reload.RESTART),
            Change(name="sink.topics", old="[]", new='["a"]', reload=Reload.SINK),
        ]
        assert first.restart == second.restart == named
        applied = Change(name="mqtt.retained_max", old="1000000", new="7", reload=Reload.AT_ONCE)
        assert (first.applied, second.applied) == ([applied], [])
        assert node.settings.mqtt.port == 0

    stage.run(scenario)


def test_reloads_wait_for_each_other_and_hangups_are_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred signals while one reload is asked for are one more reload."""
    loads = 0
    load = stage.load

    def counted() -> Settings:
        nonlocal loads
        loads += 1
        return load()

    async def scenario(_node: Node, reloader: Reloader) -> None:
        monkeypatch.setattr(reloader, "_load", counted)
        for _ in range(100):
            reloader.hangup()
        await asyncio.gather(reloader.reload(), reloader.reload())
        assert loads == 3

    stage.run(scenario)


def test_without_a_server_there_is_nothing_to_reload(stage: Stage) -> None:
    reloader = Reloader(stage.load, stage.load(), ServiceManager({}))
    with pytest.raises(Failure, match="starting or changing its role"):
        asyncio.run(_reload(reloader))


async def _reload(reloader: Reloader) -> None:
    await reloader.reload()
