"""What a normative statement of the standards is, and how a test says which ones it shows.

The OASIS standards of MQTT number the sentences that an implementation has to fulfil, such as
[MQTT-3.1.2-5]. `statements_5.py` has those of MQTT 5.0, `statements_311.py` those of 3.1.1. A test
names what it shows with the decorator of its version:

    @shows("MQTT-3.1.2-5")
    def test_a_session_goes_on(case: Case) -> None: ...

A name that is not in the table is an error when the test is collected. `matrix.py` puts the tables
and the tests together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import pytest


class Concerns(Enum):
    """Whose duty a statement is."""

    SERVER = "server"
    CLIENT = "client"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of a standard.

    Attributes:
        identifier: as the standard has it.
        concerns: who has to fulfil it. Those of clients alone need no test of a server; some have
            one, which shows what the server does when a client breaks them.
        text: what it says, in our words.
        untested: why no test can show it over a socket, where that is so.
    """

    identifier: str
    concerns: Concerns
    text: str
    untested: str = ""


Table = dict[str, Statement]


def table(*statements: Statement) -> Table:
    """Statements by their identifiers, in the order of the standard."""
    found = {statement.identifier: statement for statement in statements}
    if len(found) != len(statements):
        raise ValueError("a statement stands in the table twice")
    return found


def marker(statements: Table) -> Callable[..., pytest.MarkDecorator]:
    """The decorator by which tests name statements of this table."""

    def shows(*identifiers: str) -> pytest.MarkDecorator:
        unknown = [identifier for identifier in identifiers if identifier not in statements]
        if unknown or not identifiers:
            raise ValueError(f"the standard has no such statement: {unknown}")
        return pytest.mark.shows(*identifiers)

    return shows
