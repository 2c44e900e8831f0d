"""Liveness, readiness and startup, by what a server says of itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from polymq.admin.health import HEALTH_PATHS, Health


def ask(health: Health, path: str) -> tuple[int, str]:
    """The status, and why."""
    (route,) = [route for route in health.routes() if route.path == path]
    answering: Any = route.handler(make_mocked_request("GET", path))
    response: web.Response = asyncio.run(answering)
    assert response.text is not None
    assert response.headers["Cache-Control"] == "no-store"
    return response.status, json.loads(response.text)["status"]


def test_all_paths_are_served() -> None:
    assert {route.path for route in Health(str).routes()} == HEALTH_PATHS


@pytest.mark.parametrize(
    ("started", "refusal", "startup", "ready"),
    [
        (False, "", (503, "starting"), (503, "starting")),
        (False, "stopping", (503, "starting"), (503, "starting")),
        (True, "", (200, "ok"), (200, "ok")),
        (True, "stopping", (200, "ok"), (503, "stopping")),
    ],
)
def test_answers(
    started: bool, refusal: str, startup: tuple[int, str], ready: tuple[int, str]
) -> None:
    """A server that stops or cannot store anything has started all the same, and lives."""
    health = Health(lambda: refusal)
    health.started = started
    assert ask(health, "/health/startup") == startup
    assert ask(health, "/health/ready") == ready
    assert ask(health, "/health/live") == (200, "ok")
