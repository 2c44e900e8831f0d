"""Step: every protocol to every protocol, body and attributes compared at each receiver."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from examples.demo.ali_ons import AliOns
from examples.demo.mapping import expected_attributes
from examples.demo.messages import PROTOCOLS, Item, plan
from examples.demo.server import DemoServer
from examples.demo.workers import DemoFailed, Worker, module

COUNT = 21
"""Messages of each publisher: every kind of body three times."""
STEP_SECONDS_MAX = 60.0
ALI_ONS = "ali-ons"
TITLES = {
    "mqtt": "MQTT",
    "amqp": "AMQP",
    "http": "CloudEvents",
    "rocketmq": "RocketMQ",
    ALI_ONS: ALI_ONS,
}
SUBSCRIBER = {"mqtt": "mqtt", "amqp": "amqp", "http": "webhook", "rocketmq": "rocketmq"}


@dataclass(slots=True)
class Cell:
    """What one subscriber got from one publisher."""

    problems: list[str] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    @property
    def held(self) -> bool:
        """Whether everything came, unaltered."""
        return not self.problems and not self.missing

    def text(self) -> str:
        """For the table."""
        if not self.held:
            return "FAILED"
        return f"{len(self.latencies_ms)} ok {statistics.median(self.latencies_ms):5.1f} ms"


Matrix = dict[tuple[str, str], Cell]


def run_matrix(
    server: DemoServer, seed: int, corrupt: tuple[str, str] | None, ali_ons: AliOns | None
) -> Matrix:
    """Send COUNT messages with each protocol while subscribers of each protocol listen.

    Args:
        corrupt: (publisher, subscriber) of the cell that is spoiled on purpose.
        ali_ons: where it is there: one more publisher and subscriber.
    """
    everybody = (*PROTOCOLS, *([ALI_ONS] if ali_ons is not None else []))
    items = {publisher: plan(publisher, COUNT, seed) for publisher in everybody}
    matrix = {
        (publisher, subscriber): Cell(missing={item.tag for item in items[publisher]})
        for publisher in everybody
        for subscriber in everybody
    }
    subscribers: dict[str, Worker] = {}
    try:
        for name in everybody:
            if name == ALI_ONS:
                assert ali_ons is not None
                subscribers[name] = ali_ons.subscriber(server.address("rocketmq"))
                continue
            spoiled = corrupt[0] if corrupt is not None and corrupt[1] == name else None
            options = ["--corrupt", spoiled] if spoiled else []
            subscribers[name] = Worker(
                server.processes,
                f"the {TITLES[name]} subscriber",
                module("subscribe", SUBSCRIBER[name], server.ports[name], "demo-matrix", *options),
            )
        for worker in subscribers.values():
            worker.wait_ready()
        sent: dict[str, float] = {}
        for name in everybody:
            if name == ALI_ONS:
                assert ali_ons is not None
                publisher = ali_ons.publisher(server.address("rocketmq"), items[name])
            else:
                publisher = Worker(
                    server.processes,
                    f"the {TITLES[name]} publisher",
                    module("publish", name, server.ports[name], seed, COUNT),
                )
            sent |= _publish(publisher)
        expected = {item.tag: item for planned in items.values() for item in planned}
        for name, worker in subscribers.items():
            cells = {publisher: matrix[publisher, name] for publisher in everybody}
            _receive(cells, name, worker, expected, sent)
        for worker in subscribers.values():
            worker.finish()
    finally:
        for worker in subscribers.values():
            worker.kill()
    return matrix


def _publish(worker: Worker) -> dict[str, float]:
    """Let one publisher send its plan; returns when each message was sent, by tag."""
    try:
        lines = list(worker.said(STEP_SECONDS_MAX))
    finally:
        worker.kill()
    acked = {line["tag"]: line["sent"] for line in lines if line["event"] == "acked"}
    if len(acked) != COUNT:
        text = f"{len(acked)} of {COUNT} messages were acknowledged to {worker.name}"
        raise DemoFailed(text)
    return acked


def _receive(
    cells: dict[str, Cell],
    subscriber: str,
    worker: Worker,
    expected: dict[str, Item],
    sent: dict[str, float],
) -> None:
    """Read what one subscriber got until nothing is missing, and compare each message."""
    try:
        for line in worker.said(STEP_SECONDS_MAX):
            item = expected.get(line["tag"])
            if item is None:
                raise DemoFailed(f"{worker.name} got {line['tag']!r}, which nobody sent")
            cell = cells[item.publisher]
            if line["tag"] not in cell.missing:
                cell.problems.append(f"{item.tag} came twice")
            cell.missing.discard(line["tag"])
            cell.latencies_ms.append((line["at"] - sent[item.tag]) * 1000)
            if line["digest"] != item.digest():
                cell.problems.append(f"{item.tag} ({item.kind}) came with another body")
            for name, value in expected_attributes(item, subscriber).items():
                if line["attributes"].get(name) != value:
                    got = line["attributes"].get(name)
                    cell.problems.append(f"{item.tag}: {name} is {got!r} and not {value!r}")
            if not any(cell.missing for cell in cells.values()):
                return
    except DemoFailed:
        if not any(cell.missing for cell in cells.values()):
            raise
        # Time is up: the missing messages stand in their cells.


def table(matrix: Matrix) -> list[str]:
    """The matrix for a person."""
    head = "".join(f"{'to ' + TITLES[name]:<16}" for name in PROTOCOLS)
    lines = [f"{'':<18}{head}".rstrip()]
    for publisher in PROTOCOLS:
        row = "".join(f"{matrix[publisher, name].text():<16}" for name in PROTOCOLS)
        lines.append(f"{'from ' + TITLES[publisher]:<18}{row}".rstrip())
    return lines


def ali_ons_line(matrix: Matrix) -> str:
    """What ali-ons sent and got, in a line."""
    cells = [cell for pair, cell in matrix.items() if ALI_ONS in pair]
    held = sum(cell.held for cell in cells)
    return f"with {ALI_ONS}: {held} of {len(cells)} cells held, to and from all four and itself"


def complaints(matrix: Matrix) -> list[str]:
    """What did not hold, a few lines a cell."""
    lines = []
    for (publisher, subscriber), cell in matrix.items():
        found = list(cell.problems)
        if cell.missing:
            found.append(f"{len(cell.missing)} messages did not come")
        name = f"{TITLES[publisher]} to {TITLES[subscriber]}"
        lines += [f"{name}: {problem}" for problem in found[:3]]
        if len(found) > 3:
            lines.append(f"{name}: and {len(found) - 3} problems more")
    return lines
