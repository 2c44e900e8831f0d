"""Whose things are: what a user leaves in the broker belongs to that user, its *owner*.

A queue passes on what it gives up, and an exchange what it gets, long after the user who asked for
that has left. So the owner is kept with it, and whatever it does counts as done by the owner, with
the rights that the owner has then. Half messages and queues whose names the server made up are kept
for their owner, too: nobody else gets at them.

Rules:

* An owner is a user's name and number (`User.number`). A user who is made anew under the name of a
  deleted one is another: who gets a name inherits nothing.
* The owner of a deleted user's things may do nothing, and so may a disabled user.
* What has no owner was made while the broker had no users, when everybody might do everything, or
  by the broker itself. It goes on unchecked, and so does everything while nobody has to log in.
* Decisions are kept until rights or bindings change. Links are asked about when a route is made
  (`exchanges/graph.py`), dead letters once for each run that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from polymq.broker.accounts.permissions import ANONYMOUS, Action, RuleSet
from polymq.broker.accounts.users import Change, Users
from polymq.broker.port.values import Address

DECISIONS_MAX: Final = 10_000
"""Decisions that are kept, about 0.3 KiB each. Beyond that all are forgotten."""
GONE: Final = -1
"""The number of an owner who was deleted before the thing came here. No user has it."""
_SEPARATOR: Final = ":"  # in no user's name


class Owners:
    """See the head of this file."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._decisions: dict[Hashable, bool] = {}
        self._version = -1  # of the users, that the decisions were made under

    def of(self, principal: str) -> str:
        """The owner of what the principal declares now, as it is stored; empty for nobody."""
        user = self._users.users.get(principal)
        return "" if not principal else owner_of(principal, 0 if user is None else user.number)

    def principal_of(self, owner: str) -> str:
        """Whose rights an owner has: its user's, or, when that user is gone, those of a name that
        no user can have. A text without a number is the name itself."""
        name, numbered, number = owner.partition(_SEPARATOR)
        if not numbered or name == ANONYMOUS:
            return name
        user = self._users.users.get(name)
        return name if user is not None and user.number == int(number) else owner

    def restored(self, principal: str) -> str:
        """The owner of something that was another broker's, as it is stored here. A principal that
        is no user owns it as one who is gone: with no rights, also if the name comes back."""
        gone = principal not in self._users.users and principal != ANONYMOUS
        return owner_of(principal, GONE) if principal and gone else self.of(principal)

    def concerned(self, owner: str, change: Change) -> bool:
        """Whether the change may be one for the owner."""
        return bool(owner) and self._users.concerns(change, owner.partition(_SEPARATOR)[0])

    def exists(self, owner: str) -> bool:
        """Whether somebody answers for it: a user that is there, or nobody has to."""
        return self._decide(owner, (owner,), lambda rules: not rules.is_empty)

    def may_link(self, owner: str, source: Address, destination: Address) -> bool:
        """Whether the owner may carry what matches one filter to all that matches the other."""
        return self._decide(
            owner,
            (owner, source, destination),
            lambda rules: (
                rules.decide_filter(Action.SUBSCRIBE, source).allowed
                and rules.decide_filter(Action.PUBLISH, destination).allowed
            ),
        )

    def may_read(self, owner: str, filters: Callable[[], list[Address]], key: Hashable) -> bool:
        """Whether the owner may read all that these filters match. `key` changes with them."""
        return self._decide(
            owner,
            (owner, key),
            lambda rules: all(
                rules.decide_filter(Action.SUBSCRIBE, address).allowed for address in filters()
            ),
        )

    def may_publish(self, owner: str, address: Address, *, creates: bool) -> bool:
        """Whether the owner may publish at a place; `creates`: its topic would be made for it."""
        return self._decide(
            owner,
            (owner, address, creates),
            lambda rules: (
                rules.decide(Action.PUBLISH, address).allowed
                and (not creates or rules.decide(Action.CREATE, address).allowed)
            ),
        )

    def _decide(self, owner: str, key: Hashable, decide: Callable[[RuleSet], bool]) -> bool:
        if not owner or not self._users.closed:
            return True
        if self._version != self._users.version or len(self._decisions) >= DECISIONS_MAX:
            self._version = self._users.version
            self._decisions.clear()
        decision = self._decisions.get(key)
        if decision is None:
            rules = self._rules(owner)
            decision = self._decisions[key] = rules is not None and decide(rules)
        return decision

    def _rules(self, owner: str) -> RuleSet | None:
        """What the owner may do now; None if it is gone."""
        name, _, number = owner.partition(_SEPARATOR)
        user = self._users.users.get(name)
        if user is None and name != ANONYMOUS:
            return None
        if user is not None and user.number != int(number):
            return None
        return self._users.rule_set(name)


def owner_of(name: str, number: int = 0) -> str:
    """The owner as it is stored."""
    return f"{name}{_SEPARATOR}{number}"


def is_owner(text: str) -> bool:
    """Whether it is an owner, and no user's name."""
    return _SEPARATOR in text
