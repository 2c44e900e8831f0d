"""The Helm chart: that its templates are whole, and, where Helm is installed, what they become."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from polymq.admin.health import HEALTH_PATHS
from polymq.settings import Settings, setting_paths
from tests.packaging.product import PACKAGING, default_ports

CHART = PACKAGING / "helm/polymq"
TEMPLATES = sorted((CHART / "templates").iterdir())
ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
OPENING = {"if", "range", "with", "define"}

Document = dict[str, Any]


def values() -> Document:
    found: Document = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def actions(path: Path) -> Iterator[str]:
    """What stands between braces, without comments."""
    for found in ACTION.findall(path.read_text(encoding="utf-8")):
        if not found.startswith("/*"):
            yield found


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_block_has_its_end(path: Path) -> None:
    depth = 0
    for action in actions(path):
        word = action.split()[0]
        depth += (word in OPENING) - (word == "end")
        assert depth >= 0, action
    assert depth == 0
    text = path.read_text(encoding="utf-8")
    assert text.count("{{") == text.count("}}") == len(ACTION.findall(text))


def named_values() -> set[tuple[str, ...]]:
    return {
        tuple(name.split("."))
        for path in TEMPLATES
        for action in actions(path)
        for name in re.findall(r"\.Values\.([A-Za-z.]+)", action)
    }


def test_templates_name_values_that_there_are() -> None:
    """A misspelt value is empty, and nobody is told."""
    for name in named_values():
        found: Any = values()
        for part in name:
            assert part in found, ".".join(name)
            found = found[part]


def test_every_value_has_an_effect() -> None:
    named = {name[: depth + 1] for name in named_values() for depth in range(len(name))}
    for key, value in values().items():
        assert (key,) in named
        if isinstance(value, dict) and key not in ("protocols", "resources"):
            for inner in value:
                assert (key, inner) in named or (key,) in named_values(), f"{key}.{inner}"


def test_templates_include_what_is_defined() -> None:
    texts = [action for path in TEMPLATES for action in actions(path)]
    defined = {name for text in texts for name in re.findall(r'^define "([^"]+)"', text)}
    included = {name for text in texts for name in re.findall(r'include "([^"]+)"', text)}
    assert included == defined


def test_the_ports_are_the_programs() -> None:
    """The chart has a table of them, which no value changes."""
    helpers = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    (table,) = re.findall(r'define "polymq.ports" -}}\n(.*?){{- end', helpers, re.DOTALL)
    ports = {name: (one["plain"], one["tls"]) for name, one in yaml.safe_load(table).items()}
    assert ports == default_ports()
    assert set(values()["protocols"]) == set(ports)


def test_protocols_are_sections_of_the_settings() -> None:
    """The chart makes variables of their names."""
    for name in set(values()["protocols"]) - {"websocket"}:
        assert f"{name}.enabled" in setting_paths()
        assert name == "names" or f"{name}.plain" in setting_paths()
    assert "mqtt.websocket" in setting_paths()


@pytest.fixture(scope="module")
def helm() -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed")
    return found


def template(helm: str) -> list[str]:
    """The command. Without a cluster, Helm supposes one as old as itself was built for."""
    return [helm, "template", "broker", str(CHART), "--kube-version", "1.30.0"]


def rendered(helm: str, *options: str) -> list[Document]:
    """The documents that a release would have."""
    command = [*template(helm), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [document for document in yaml.safe_load_all(ended.stdout) if document]


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def broker(documents: list[Document]) -> Document:
    pod = of_kind(documents, "StatefulSet")["broker-polymq"]["spec"]["template"]["spec"]
    found: Document = pod["containers"][0]
    return found


def test_a_service_for_each_protocol(helm: str) -> None:
    """Each has its ports, and the container has them all under the same names."""
    documents = rendered(helm)
    services = of_kind(documents, "Service")
    enabled = {name for name, value in values()["protocols"].items() if value["enabled"]}
    assert set(services) == {"broker-polymq", *(f"broker-polymq-{name}" for name in enabled)}
    opened = {one["name"]: one["containerPort"] for one in broker(documents)["ports"]}
    assert opened.pop("metrics") == Settings().metrics.port
    assert opened == {name: default_ports()[name][0] for name in enabled}
    for service in services.values():
        for port in service["spec"]["ports"]:
            assert opened[port["targetPort"]] == port["port"]


def test_with_tls_only_nothing_is_plain_but_the_name_server(helm: str) -> None:
    options = ("--set", "tls.secretName=cert,tls.only=true,protocols.websocket.enabled=true")
    container = broker(rendered(helm, *options))
    plain = {one["name"] for one in container["ports"] if not one["name"].endswith("-tls")}
    assert plain == {"names", "metrics"}
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["POLYMQ_MQTT__PLAIN"] == environment["POLYMQ_HTTP__PLAIN"] == "false"
    assert environment["POLYMQ_MQTT__WEBSOCKET"] == "true"
    assert "POLYMQ_NAMES__PLAIN" not in environment


def test_probes_ask_the_listener_of_metrics(helm: str) -> None:
    """Whichever protocols there are: the chart opens it, and nothing else needs it to be there."""
    container = broker(rendered(helm, "--set", "protocols.http.enabled=false"))
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["POLYMQ_METRICS__ENABLED"] == "true"
    asked = {
        container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert asked == HEALTH_PATHS
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for name in ("startup", "readiness", "liveness"):
        assert ports[container[f"{name}Probe"]["httpGet"]["port"]] == Settings().metrics.port


@pytest.mark.parametrize("wrong", ["tls.only=true", "tls.clientCertificates=true"])
def test_tls_without_a_certificate_is_refused(helm: str, wrong: str) -> None:
    command = [*template(helm), "--set", wrong]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode != 0
    assert "needs a certificate: set tls.secretName" in ended.stderr


def test_the_pod_has_no_rights(helm: str) -> None:
    """It is not root, writes to its volumes only, and has no token for the cluster."""
    options = ("--set", "podDisruptionBudget.enabled=true,metrics.podMonitor=true")
    documents = rendered(helm, *options)
    pod = of_kind(documents, "StatefulSet")["broker-polymq"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert of_kind(documents, "PodDisruptionBudget")
    assert of_kind(documents, "PodMonitor")
