"""Which pages the site has, and the order in which its sidebar shows them.

Pages are named by their path from the root of the tree, without `.md`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FRONT: Final = "docs/README"
"""The page that the site opens with."""

SECTIONS: Final[dict[str, list[str]]] = {
    "Start in five minutes": [
        "docs/start-mqtt",
        "docs/start-amqp",
        "docs/start-http",
        "docs/start-rocketmq",
        "docs/start-parquet",
    ],
    "Concepts": [
        "docs/concepts",
        "docs/durability",
        "docs/properties",
        "docs/delays",
        "docs/promises",
        "docs/glossary",
    ],
    "MQTT": [
        "docs/mqtt-5",
        "docs/mqtt-listeners",
        "docs/mqtt-websocket",
        "docs/mqtt-shared-subscriptions",
        "docs/mqtt-extras",
        "docs/mqtt-bridge",
        "docs/sys-topics",
        "docs/mqtt-not-there",
        "docs/mqtt-conformance",
    ],
    "Other protocols": [
        "docs/amqp",
        "docs/http",
        "docs/rocketmq",
        "docs/rocketmq-client",
        "docs/dataframes",
        "docs/parquet",
    ],
    "Operations": [
        "docs/install",
        "docs/sizing",
        "docs/performance",
        "docs/scale",
        "docs/security-checklist",
        "docs/security",
        "docs/monitoring",
        "docs/telemetry",
        "docs/troubleshooting",
        "docs/console",
        "docs/mqtt-operators",
        "docs/mqtt-dynamic-security",
        "docs/connections",
        "docs/consumers",
        "docs/queues",
        "docs/dead-letters",
        "docs/finding",
        "docs/retention",
        "docs/reload",
        "docs/backup",
        "docs/definitions",
        "docs/replication",
        "docs/cluster",
        "docs/upgrade",
    ],
    "Coming from another broker": [
        "docs/migrating-from-mosquitto",
        "docs/migrating-from-emqx",
        "docs/migrating-from-rabbitmq",
        "docs/migrating-from-rocketmq",
        "docs/migrating-from-kafka",
    ],
    "Reference": [
        "docs/configuration",
        "docs/commands",
        "docs/admin-api",
        "docs/rabbitmq-management",
        "docs/metrics",
        "CHANGELOG",
    ],
    "The project": [
        "README",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "SECURITY",
        "docs/decisions/README",
    ],
}
"""The sidebar. A page that is neither here nor among the `CHILDREN` fails the build."""


def _pages(*patterns: str) -> list[str]:
    found = (path for pattern in patterns for path in sorted(ROOT.glob(pattern)))
    # Caches of tools have pages of their own, in folders that begin with a dot.
    names = [path.relative_to(ROOT).with_suffix("").as_posix() for path in found]
    return [name for name in names if not name.startswith(".")]


TITLES: Final = {
    "docs/start-mqtt": "MQTT",
    "docs/start-amqp": "AMQP",
    "docs/start-http": "CloudEvents over HTTP",
    "docs/start-rocketmq": "RocketMQ clients",
    "docs/start-parquet": "Parquet and Spark",
    "docs/migrating-from-mosquitto": "mosquitto",
    "docs/migrating-from-emqx": "EMQX",
    "docs/migrating-from-rabbitmq": "RabbitMQ",
    "docs/migrating-from-rocketmq": "RocketMQ",
    "docs/migrating-from-kafka": "Kafka",
    "README": "First steps",
    "ARCHITECTURE": "Architecture",
    "docs/durability": "Durability",
    "docs/retention": "Retention",
    "docs/amqp": "AMQP",
    "docs/decisions/README": "Decisions",
}
"""What the sidebar calls pages whose own titles say what the section says already, or are long."""

CHILDREN: Final[dict[str, list[str]]] = {
    "docs/decisions/README": _pages("docs/decisions/[0-9]*.md"),
    "CONTRIBUTING": [
        page
        for page in _pages("*/README.md", "gateways/*/README.md", "*/mqtt_conformance/README.md")
        if page != FRONT
    ]
    + ["docs/site/README"],
}
"""Pages below another one, which the sidebar shows when that one is open."""


def pages() -> list[str]:
    """Every page of the site."""
    of_sections = [page for section in SECTIONS.values() for page in section]
    return [FRONT, *of_sections, *(page for below in CHILDREN.values() for page in below)]


def directives(page: str) -> str:
    """What is added to the source of a page, so that Sphinx knows which pages are below it."""
    if page == FRONT:
        return "".join(_tree(caption, below) for caption, below in SECTIONS.items())
    return _tree("", CHILDREN[page]) if page in CHILDREN else ""


def _tree(caption: str, below: list[str]) -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    entries = [f"{TITLES[page]} </{page}>" if page in TITLES else f"/{page}" for page in below]
    lines = ["", "", "```{toctree}", *options, "", *entries, "```", ""]
    return "\n".join(lines)
