"""Small programs that publish a message and receive it: by protocol and language, with the address
and the topic of a broker filled in.

In a program, `$name` stands for a value as the language writes it, quotes included. A line that
begins with `?` is for brokers with users, one with `!` for those without. Passwords and keys come
from the environment and are in no program.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from string import Template
from typing import Final
from urllib.parse import quote

from polymq.console.snippets import amqp, http, mqtt, rocketmq

LANGUAGES: Final = ("Python", "Go", "JavaScript", "Java", "Shell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol, or what reads by it.

    Attributes:
        listener: the listener that the programs connect to.
        programs: by language.
        others: what is said for the languages that have none.
        key: what identifies a program that logs in: the variables of its environment.
    """

    name: str
    listener: str
    programs: dict[str, str]
    others: str = ""
    key: str = "the password is in the environment variable PASSWORD"


_ACCESS_KEY: Final = "an access key of the user is in ACCESS_KEY and SECRET_KEY"
PROTOCOLS: Final = (
    Protocol(name="MQTT", listener="mqtt", programs=mqtt.PROGRAMS),
    Protocol(name="AMQP", listener="amqp", programs=amqp.PROGRAMS),
    Protocol(name="HTTP", listener="http", programs=http.PROGRAMS),
    Protocol(
        name="RocketMQ",
        listener="rocketmq",
        programs=rocketmq.PROGRAMS,
        others="Apache has no client of this protocol for {language}. Use MQTT, AMQP or HTTP.",
        key=_ACCESS_KEY,
    ),
    Protocol(
        name="Spark",
        listener="rocketmq",
        programs=rocketmq.SPARK,
        others="The data source is for Python. `polymq sink` writes Parquet files, which other "
        "languages can read, {language} among them.",
        key=_ACCESS_KEY,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a program is about.

    Attributes:
        user: who logs in; empty: the broker has no users.
    """

    host: str
    port: int
    topic: str
    user: str


def program(protocol: Protocol, language: str, target: Target) -> str:
    """The text of a program; empty if the language has none."""
    lines = []
    for line in protocol.programs.get(language, "").splitlines(keepends=True):
        if line.startswith(("?", "!")):
            if line.startswith("?") != bool(target.user):
                continue
            line = line[1:]
        lines.append(line)
    return Template("".join(lines)).substitute(_values(target))


def _values(target: Target) -> dict[str, str]:
    topic, bracketed = target.topic, target.host
    if ":" in bracketed:
        bracketed = f"[{bracketed}]"
    address, path = f"{bracketed}:{target.port}", f"/topics/{quote(topic, safe='')}"
    texts = {
        "host": target.host,
        "user": target.user,
        "topic": topic,
        "mqtt_topic": f"{topic}/hello",
        "filter": f"{topic}/#",
        "address": address,
        "url": f"http://{address}",
        "topic_path": path,
        "subscription_path": f"{path}/subscriptions/hello",
        "topic_url": f"http://{address}{path}",
        "subscription_url": f"http://{address}{path}/subscriptions/hello",
        "subscription": json.dumps({"topic": topic}, ensure_ascii=False),
    }
    literals = {name: _literal(text) for name, text in texts.items()}
    in_shell = {f"shell_{name}": shlex.quote(text) for name, text in texts.items()}
    return {**literals, **in_shell, "port": str(target.port)}


def _literal(text: str) -> str:
    """A text in quotes, as all of the languages but the shell write it."""
    return json.dumps(text, ensure_ascii=False)
