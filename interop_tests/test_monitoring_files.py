"""The files in `monitoring/` and the page about metrics, beside what a server serves; and a real
Prometheus that scrapes a server with the rules."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.name_server import wait_until
from interop_tests.test_monitoring import OPEN, amqp_channel, ask, port_of

ROOT = Path(__file__).parent.parent
FILES = ROOT / "monitoring"
RULES = FILES / "polymq.rules.yml"
RULES_TEST = FILES / "polymq.rules_test.yml"
DASHBOARD = FILES / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"\b(?:polymq|process|python)_[a-z0-9_]+")
OF_PROMETHEUS = frozenset({"up", "ALERTS"})
EVERYTHING: dict[str, object] = {
    **OPEN,
    "metrics.per_object": True,
    "login_service.url": "http://127.0.0.1:9/login",
    "permission_service.url": "http://127.0.0.1:9/permission",
    "jwt.jwks_url": "http://127.0.0.1:9/keys",
    "jwt.issuer": "nobody",
    "jwt.audience": "nobody",
}
"""All that has metrics of its own. The services need not be there."""
SECONDS_MAX = 120.0
QUOTED = 'a "quoted" name'

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="promtool and prometheus are not installed (Debian's package prometheus)",
)


def series_of(text: str) -> set[str]:
    """The names of all series that an answer of `/metrics` describes, with values or without."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + end for end in ends}
    return found


def families_of(text: str) -> set[str]:
    """The names of all metrics, as the page has them."""
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


def expressions() -> dict[str, str]:
    """Each query of the rules and the dashboard, by where it stands."""
    rules = RULES.read_text(encoding="utf-8")
    pairs = re.findall(r"^ +- alert: (\w+)\n +expr: (.+)$", rules, re.MULTILINE)
    assert len(pairs) == rules.count("alert:")
    found = {f"alert {name}": expression for name, expression in pairs}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics of a server with all that has some."""
    server = Server(
        tmp_path_factory.mktemp("served"), EVERYTHING, {}, (sys.executable, "-m", "polymq")
    )
    try:
        server.start()
        yield ask(server, "/metrics")[1].decode()
    finally:
        server.close(sys.stdout)


# --- names ----------------------------------------------------------------------------------------


def test_rules_and_dashboard_name_what_is_served(served: str) -> None:
    known = series_of(served)
    wrong = {
        where: sorted(unknown)
        for where, expression in expressions().items()
        if (unknown := set(NAME.findall(expression)) - known)
    }
    assert wrong == {}


def test_each_query_has_a_metric() -> None:
    """A misspelt prefix would be no name at all."""
    for where, expression in expressions().items():
        assert NAME.search(expression) or "up{" in expression, where


def test_the_page_has_each_metric_and_no_other(served: str) -> None:
    page = set(re.findall(r"`((?:polymq|process|python)_[a-z0-9_]+)[`{]", PAGE.read_text()))
    families = families_of(served)
    assert sorted(families - page) == [], "not on the page"
    assert sorted(page - families) == [], "not served"


def test_names_of_metrics_end_in_their_units(served: str) -> None:
    """And counters in `_total`, as Prometheus wants."""
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", served, re.MULTILINE):
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kib|mib)(_|$)", name), name


# --- promtool -------------------------------------------------------------------------------------


def run(*command: str) -> None:
    """A command that ends well."""
    ended = subprocess.run(
        command, cwd=FILES, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@promtool
def test_rules_and_their_tests_pass() -> None:
    run("promtool", "check", "rules", RULES.name)
    run("promtool", "check", "config", "prometheus.yml")
    run("promtool", "test", "rules", RULES_TEST.name)


def test_each_alert_has_a_test() -> None:
    alerts = {where for where in expressions() if where.startswith("alert ")}
    tested = set(re.findall(r'alertname="(\w+)"', RULES_TEST.read_text(encoding="utf-8")))
    assert tested == {alert.removeprefix("alert ") for alert in alerts}


# --- a real Prometheus ----------------------------------------------------------------------------


class Prometheus:
    """A Prometheus that scrapes one server, with the rules."""

    def __init__(self, directory: Path, server: Server) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        text = (FILES / "prometheus.yml").read_text(encoding="utf-8")
        for example, own in (
            ("localhost:9466", f"127.0.0.1:{port_of(server)}"),
            (RULES.name, str(RULES)),
            ("15s", "1s"),
        ):
            assert example in text
            text = text.replace(example, own)
        file = directory / "prometheus.yml"
        file.write_text(text, encoding="utf-8")
        self._log = (directory / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log,
            stderr=self._log,
            cwd=directory,
        )  # fmt: skip

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._log.close()

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API; None if it does not answer yet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def value(self, query: str) -> float | None:
        """Of one series."""
        data = self.get("query", query=query)
        return float(data["result"][0]["value"][1]) if data and data["result"] else None


@promtool
def test_prometheus_scrapes_a_server(start_server: StartServer, tmp_path: Path) -> None:
    """It takes all that is served, and no alert is about a server that is well. When the server
    has gone, one is."""
    server = start_server(**OPEN, **{"metrics.per_object": True})
    with amqp_channel(server) as channel:
        channel.queue_declare(QUOTED, durable=True)
        for _ in range(3):
            channel.basic_publish("", QUOTED, b"x")
    prometheus = Prometheus(tmp_path, server)
    try:
        wait_until(lambda: prometheus.value("up") == 1.0)
        wait_until(lambda: prometheus.value("sum(polymq_object_lag_messages)") == 3.0)
        assert prometheus.value('polymq_object_lag_messages{name="a \\"quoted\\" name"}') == 3.0
        assert prometheus.value("polymq_read_only") == 0.0
        scraped = set(prometheus.get("label/__name__/values"))
        assert {name for name in scraped if name.startswith("polymq_")} <= series_of(
            ask(server, "/metrics")[1].decode()
        )
        wait_until(lambda: (prometheus.value("count_over_time(up[1m])") or 0) >= 4)
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
        assert server.terminate() == 0
        wait_until(lambda: prometheus.value('count(ALERTS{alertname="PolyMQDown"})') == 1.0)
    finally:
        prometheus.close()
