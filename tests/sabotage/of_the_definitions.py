"""Sabotages of definitions, of long answers, and of requests that change several things."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

IMPORTING = "tests/polymq/definitions/test_importing.py"
ROUND_TRIP = "tests/polymq/definitions/test_round_trip.py"

LISTS = "tests/polymq/management/test_lists.py"
PARTS = "tests/polymq/management/test_small_parts.py"

OF_THE_DEFINITIONS = (
    Sabotage(
        name="half-a-character-is-a-text",
        why="a payload that ends within a character comes without its end",
        path="polymq/management/payloads.py",
        old='        decoder.decode(b"", final=True)\n',
        new="",
        tests=("tests/polymq/management/test_payloads.py",),
    ),
    Sabotage(
        name="rules-are-checked-one-by-one",
        why="a request that is refused has added some of its rules",
        path="polymq/admin/permissions.py",
        old="        self._users.check_new_rules(body.subject, rules)",
        new="        pass",
        tests=("tests/polymq/admin/test_rules_together.py",),
    ),
    Sabotage(
        name="rows-of-newer-versions-are-forgotten",
        why="an older version starts on newer data without a part of its state",
        path="broker/recovery/fold.py",
        old="        if unknown:\n",
        new="        if False:\n",
        tests=("tests/broker/test_newer_versions.py",),
    ),
    Sabotage(
        name="each-row-is-made-to-sort-a-list",
        why="a page of a hundred thousand queues takes ten times as long",
        path="polymq/management/lists.py",
        old="    if items.key is not None:\n",
        new="    if items.key is not None and not entries:\n",
        tests=(LISTS,),
    ),
    Sabotage(
        name="long-lists-push-out-all-samples",
        why="whoever lists all queues sets the rates of those on a page to 0",
        path="polymq/management/figures.py",
        old="        return self.rates if count <= SAMPLES_MAX else _no_rates\n",
        new="        return self.rates\n",
        tests=(PARTS,),
    ),
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
        old="        return owner_of(principal, GONE) if principal and gone",
        new='        return "" if principal and gone',
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
