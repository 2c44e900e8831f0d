"""Versions, ports, paths and names of settings that packages repeat are those of the program."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from polymq.cli import ELSEWHERE, polymq
from polymq.commands import console
from polymq.errors import ExitCode
from polymq.settings import SECTIONS, Settings, setting_paths
from tests.packaging.product import PACKAGING, PROJECT, ROOT, VERSION, default_ports

COMPOSE = PACKAGING / "container/compose.yaml"
CONTAINERFILE = PACKAGING / "container/Containerfile"
CHART = PACKAGING / "helm/polymq"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
INSTALL = ROOT / "docs/install.md"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def unit(path: Path) -> configparser.ConfigParser:
    """A unit's values; of keys that are there several times, the last one."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    parser.read_string(read(path))
    return parser


def test_the_version_is_the_same_everywhere() -> None:
    """A release changes all of them."""
    chart = yaml.safe_load(read(CHART / "Chart.yaml"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert yaml.safe_load(read(COMPOSE))["services"]["polymq"]["image"] == f"polymq:{VERSION}"
    for path in (CONTAINERFILE, COMPOSE, INSTALL, PACKAGING / "README.md"):
        named = re.findall(r"polymq[:_-](\d+\.\d+\.\d+)", read(path))
        assert set(named) <= {VERSION}, path


def test_the_image_exposes_the_ports_for_clients() -> None:
    (line,) = re.findall(r"^EXPOSE (.+)$", read(CONTAINERFILE), re.MULTILINE)
    exposed = sorted(map(int, line.split()))
    assert exposed == sorted(port for pair in default_ports().values() for port in pair)


def test_compose_publishes_default_ports_to_this_machine_only() -> None:
    services = yaml.safe_load(read(COMPOSE))["services"]
    plain = {pair[0] for pair in default_ports().values()}
    for name, service in services.items():
        for published in service.get("ports", []):
            address, outside, inside = published.split(":")
            assert (address, outside) == ("127.0.0.1", inside)
            assert int(inside) in plain | {9090, 3000}, name


def test_prometheus_asks_at_the_port_of_metrics() -> None:
    """The server opens it, and it is not published."""
    scraped = yaml.safe_load(read(PACKAGING / "container/prometheus.yaml"))["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == [f"polymq:{Settings().metrics.port}"]
    services = yaml.safe_load(read(COMPOSE))["services"]
    assert services["polymq"]["environment"]["POLYMQ_METRICS__ENABLED"] == "true"
    source = yaml.safe_load(read(PACKAGING / "container/grafana/datasources.yaml"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert "prometheus" in services


@pytest.mark.parametrize("name", ["datasources", "dashboards"])
def test_grafanas_files_are_yaml(name: str) -> None:
    assert yaml.safe_load(read(PACKAGING / f"container/grafana/{name}.yaml"))["apiVersion"] == 1


def test_mounted_files_are_there() -> None:
    """But the folder `monitoring`, which compose makes if it is missing."""
    for service in yaml.safe_load(read(COMPOSE))["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith(".") and not source.endswith("monitoring"):
                assert (COMPOSE.parent / source).exists(), source


def variables(text: str) -> set[str]:
    return set(re.findall(r"\bPOLYMQ_[A-Z_]+__[A-Z_]+\b", text))


@pytest.mark.parametrize(
    "path", [CONTAINERFILE, COMPOSE, INSTALL, CHART / "values.yaml"], ids=lambda path: path.name
)
def test_variables_name_settings(path: Path) -> None:
    for variable in variables(read(path)) - {"POLYMQ_SECTION__KEY"}:
        section, _, key = variable.removeprefix("POLYMQ_").lower().partition("__")
        assert f"{section}.{key}" in setting_paths(), variable


def test_settings_in_the_documentation_exist() -> None:
    """As settings, or as values of the chart."""
    values = yaml.safe_load(read(CHART / "values.yaml"))
    for section, key in re.findall(r"`([a-z_]+)\.([a-zA-Z_]+)`", read(INSTALL)):
        if section in SECTIONS or section in values:
            assert f"{section}.{key}" in setting_paths() or key in values[section]


def test_the_documentation_has_all_ports() -> None:
    table = read(INSTALL).partition("## The ports")[2].partition("\n## ")[0]
    found = set(map(int, re.findall(r"\| (\d+)", table)))
    settings = Settings()
    others = (settings.admin, settings.api, settings.metrics, settings.management)
    expected = {port for pair in default_ports().values() for port in pair}
    assert found == expected | {one.port for one in others} | {console.PORT}


def test_the_installed_configuration_is_one() -> None:
    """Every key is known, and the data directory is the one that the unit may write."""
    values = tomllib.loads(read(PACKAGING / "polymq.toml"))
    settings = Settings(**values)
    assert str(settings.server.data_directory) == "/var/lib/polymq"
    assert settings.server.host == Settings().server.host


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_command_that_exists(path: Path) -> None:
    program, command, *options = unit(path)["Service"]["ExecStart"].split()
    assert program == "/usr/bin/polymq"
    found = polymq.commands[command]
    names = {name for parameter in found.params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= names
    assert "/etc/polymq/polymq.toml" in options


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_again_where_that_helps(path: Path) -> None:
    """And not where the same start would fail in the same way for ever."""
    prevented = set(map(int, unit(path)["Service"]["RestartPreventExitStatus"].split()))
    assert prevented >= {ExitCode.USAGE, ExitCode.CANNOT_CREATE}
    assert not prevented & {ExitCode.BUG, ExitCode.CANNOT_LISTEN, ExitCode.FAILED}


def test_the_broker_has_time_to_end() -> None:
    """The clients' time and some more: a log that is not closed has to be recovered."""
    drain = Settings().server.drain_seconds
    service = unit(PACKAGING / "systemd/polymq.service")["Service"]
    compose: dict[str, Any] = yaml.safe_load(read(COMPOSE))["services"]["polymq"]
    values = yaml.safe_load(read(CHART / "values.yaml"))
    stops = (
        int(service["TimeoutStopSec"]),
        int(compose["stop_grace_period"].removesuffix("s")),
        values["terminationGracePeriodSeconds"],
    )
    assert min(stops) > 5 * drain


def test_the_account_is_the_units() -> None:
    (line,) = re.findall(r"^u (\S+)", read(PACKAGING / "systemd/polymq.sysusers"), re.MULTILINE)
    assert {unit(path)["Service"]["User"] for path in UNITS} == {line}
    assert f"adduser --system --quiet --ingroup {line}" in read(PACKAGING / "debian/postinst")


def test_the_health_check_is_a_command() -> None:
    assert 'CMD ["polymq", "health"]' in read(CONTAINERFILE)
    assert "health" in ELSEWHERE


def test_the_addresses_of_the_project_are_of_files_in_the_tree() -> None:
    urls = PROJECT["project"]["urls"]
    named = [url.partition("/blob/main/")[2] for url in urls.values() if "/blob/main/" in url]
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert yaml.safe_load(read(CHART / "Chart.yaml"))["home"] == urls["Homepage"]


def test_wheels_are_built_for_the_interpreters_that_the_metadata_names() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = {
        one.removeprefix(prefix)
        for one in PROJECT["project"]["classifiers"]
        if one.startswith(prefix)
    }
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert set(built) == {f"cp3{minor}-*" for minor in minors}
    assert PROJECT["project"]["requires-python"] == f">=3.{min(minors, key=int)}"
