"""Several rules of one request: all of them, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.accounts.permissions import Action, Effect, Rule, parse_pattern
from polymq.broker.errors import Reason, Refused
from tests.harness.broker import Broker
from tests.polymq.admin.harness import Api

BODY = {"effect": "allow", "subject": "ann", "actions": ["publish", "subscribe"], "topic": "a"}


def test_rules_beyond_the_limit_add_none_of_them(tmp_path: Path) -> None:
    """A rule that is there already takes no room."""
    broker = Broker(tmp_path / "data", with_state_db=False, rules_per_subject_max=2)
    users = broker.engine.users
    users.add("ann", "x")
    other = Rule(
        subject="ann", effect=Effect.ALLOW, action=Action.CREATE, pattern=parse_pattern("b")
    )
    users.add_rule(other)
    api = Api(broker)
    with pytest.raises(Refused) as refused:
        api.call("addPermissions", body=BODY)
    assert refused.value.reason is Reason.LIMIT
    assert users.rules("ann") == [other]
    users.remove_rule(other)
    api.call("addPermissions", body={**BODY, "actions": ["publish"]})
    api.call("addPermissions", body=BODY)
    assert len(users.rules("ann")) == 2
    broker.stop()
