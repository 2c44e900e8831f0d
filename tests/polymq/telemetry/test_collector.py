"""Sending to a collector: what is counted, said and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog
from aiohttp import web

from polymq.telemetry.collector import PAUSE_SECONDS_MAX, Collector, Outcome, read_files
from polymq.telemetry_settings import TelemetrySettings

Scenario = Callable[["Stage"], Awaitable[None]]


class Encoder:
    """Reads answers as a number: how much was rejected."""

    def rejected_of(self, _signal: str, answer: bytes) -> tuple[int, str]:
        return int(answer), "because"


class Stage:
    """A collector that answers as a test says, and a clock that it moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.status = 200
        self.body = b"0"
        self.asked: list[tuple[str, str, bytes]] = []
        self.sender: Collector

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers["Content-Type"], await request.read()))
        return web.Response(status=self.status, body=self.body)

    def settings(self, port: int) -> TelemetrySettings:
        return TelemetrySettings(endpoint=f"http://127.0.0.1:{port}/base/", timeout_seconds=5)


def run(scenario: Scenario) -> Stage:
    stage = Stage()

    async def main() -> None:
        application = web.Application()
        application.router.add_post("/{path:.*}", stage.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        chosen = stage.settings(runner.addresses[0][1])
        encoder: Any = Encoder()
        files = read_files(chosen)
        stage.sender = Collector(chosen, "traces", encoder, files, lambda: stage.now)
        await scenario(stage)
        await stage.sender.close()
        await runner.cleanup()

    asyncio.run(main())
    return stage


def test_a_request_goes_to_the_path_of_its_signal() -> None:
    async def scenario(stage: Stage) -> None:
        assert await stage.sender.send(b"request") is Outcome.SENT
        assert not stage.sender.is_paused

    stage = run(scenario)
    assert stage.asked == [("/base/v1/traces", "application/x-protobuf", b"request")]
    assert stage.sender.results == {"sent": 1, "failed": 0}


def test_after_failures_there_are_longer_and_longer_pauses() -> None:
    """The first of a row is logged, and the end of it."""

    async def scenario(stage: Stage) -> None:
        stage.status = 503
        for seconds in (1, 2, 4, 8):
            assert await stage.sender.send(b"") is Outcome.UNREACHED
            stage.now += seconds - 0.01
            assert stage.sender.is_paused
            stage.now += 0.01
            assert not stage.sender.is_paused
        for _ in range(20):
            await stage.sender.send(b"")
        stage.now += PAUSE_SECONDS_MAX
        assert not stage.sender.is_paused
        stage.status = 200
        assert await stage.sender.send(b"") is Outcome.SENT
        stage.status = 503
        await stage.sender.send(b"")
        stage.now += 1
        assert not stage.sender.is_paused, "the row begins again"

    with structlog.testing.capture_logs() as lines:
        stage = run(scenario)
    assert stage.sender.results == {"sent": 1, "failed": 25}
    levels = [line["log_level"] for line in lines if "traces" in line["event"]]
    assert levels == ["warning", "info", "warning"]


def test_what_nobody_has_answered_may_be_sent_again() -> None:
    async def scenario(stage: Stage) -> None:
        chosen = TelemetrySettings(endpoint="http://127.0.0.1:9", timeout_seconds=5)
        await stage.sender.change(chosen, read_files(chosen))
        assert await stage.sender.send(b"") is Outcome.UNREACHED

    run(scenario)


@pytest.mark.parametrize("status", [400, 401, 413, 500])
def test_what_the_collector_refuses_is_not_sent_again(status: int) -> None:
    """Unlike 429, 502, 503 and 504: it would be refused again."""

    async def scenario(stage: Stage) -> None:
        stage.status = status
        assert await stage.sender.send(b"") is Outcome.REFUSED

    run(scenario)


def test_what_answers_otherwise_is_no_collector() -> None:
    async def scenario(stage: Stage) -> None:
        stage.body = b"<html>"
        assert await stage.sender.send(b"") is Outcome.REFUSED

    run(scenario)


def test_what_a_collector_rejects_of_a_request_is_counted() -> None:
    async def scenario(stage: Stage) -> None:
        stage.body = b"3"
        assert await stage.sender.send(b"") is Outcome.SENT

    assert run(scenario).sender.rejected_count == 3
