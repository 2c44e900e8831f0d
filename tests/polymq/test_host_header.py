"""Which requests come from pages that a browser may send them for."""

from __future__ import annotations

import pytest

from polymq.host_header import is_of_host, names_this_machine


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost:80", "[::1]:80"])
def test_this_machine_has_these_names(host: str) -> None:
    assert names_this_machine(host)


@pytest.mark.parametrize(
    "host", ["", "example.com", "127.0.0.1.example.com:80", "127.0.0.1@example.com", "[::1", "["]
)
def test_every_other_host_is_a_stranger(host: str) -> None:
    """Also one that is no host at all: it gets an answer, and the server no traceback."""
    assert not names_this_machine(host)


def test_a_page_may_ask_the_host_that_it_came_from() -> None:
    assert is_of_host("https://mq.example.com:15672", "mq.example.com:15672")


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://[", "https://mq.example.com", "https://mq.example.com.evil:15672"],
)
def test_a_page_of_another_host_may_not(origin: str) -> None:
    assert not is_of_host(origin, "mq.example.com:15672")
