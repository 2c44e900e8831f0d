"""Sabotages of definitions: out of one broker and into another."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

IMPORTING = "tests/polymq/definitions/test_importing.py"
ROUND_TRIP = "tests/polymq/definitions/test_round_trip.py"

OF_THE_DEFINITIONS = (
    Sabotage(
        name="a-conflict-does-not-stop-an-import",
        why="half of a document is imported before the first conflict is found",
        path="polymq/definitions/importing.py",
        old="        _check_free_of_conflicts(plan)\n",
        new="",
        tests=(IMPORTING,),
    ),
    Sabotage(
        name="things-of-deleted-users-are-nobodys",
        why="what a deleted user has left works without any right after an import",
        path="broker/accounts/owners.py",
        old="        return owner_of(principal, GONE) if principal and gone else self.of(principal)\n",
        new='        return "" if principal and gone else self.of(principal)\n',
        tests=(ROUND_TRIP,),
    ),
    Sabotage(
        name="definitions-come-in-any-order",
        why="documents of equal brokers differ, and so do all lines under version control",
        path="polymq/definitions/ordering.py",
        old="        stretches.append(sorted(some))\n",
        new="        stretches.append(some)\n",
        tests=(ROUND_TRIP,),
    ),
    Sabotage(
        name="documents-of-newer-versions-are-imported",
        why="what a later version means is taken for something else",
        path="polymq/definitions/document.py",
        old="    if version > VERSION:\n",
        new="    if version > VERSION + 1:\n",
        tests=(IMPORTING,),
    ),
    Sabotage(
        name="a-document-without-passwords-is-in-conflict",
        why="a document without secrets cannot be imported",
        path="polymq/definitions/models.py",
        old='LEFT_ALONE: Final = frozenset({"password_hash", ',
        new="LEFT_ALONE: Final = frozenset({",
        tests=(IMPORTING,),
    ),
    Sabotage(
        name="settings-that-a-document-lacks-stay",
        why="a topic keeps settings that the document takes back to the default",
        path="polymq/definitions/topology.py",
        old="dict.fromkeys(current.settings, DEFAULT) | texts)",
        new="texts)",
        tests=(IMPORTING,),
    ),
)
