"""What stands before a part of the broker and asks for the right to each operation.

Each sub-port has such a class: in `permitted_publishing.py`, `permitted_amqp.py`,
`permitted_sessions.py`, `permitted_reading.py`. They keep nothing, so one is made whenever it
is asked for (`permitted_port.py`): ask once for a run of messages.

Rules:

* Publishing is checked when a template is made. A template remembers the version of the users that
  it was made under, and is not `valid` under any other: the hot path pays one comparison of
  integers for a run of messages.
* Where a service has allowed it (`asking.py`), the template is not `valid` any more when the
  answer's time is over, or the operator has dropped the answers.
* Reading is checked when it begins: a subscription, a consumer, a resumed session. It ends when
  the right does (`admission.py`), so no delivery is checked.
* A queue is a view on what its bindings collect. Who consumes from it needs the right to read all
  of that, whoever bound it; who binds it needs it as well. Queues with names that the server made
  up (`amq.gen-`) need no right of their own: they are their maker's. Others need the rights that
  they would need for any queue of that name, for a reply-to gives the name away.
* Every operation of a sub-port stands in its class, checked or handed on by choice; a test holds
  these classes complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polymq.broker.accounts.permissions import Action
from polymq.broker.admission.principal import Principal
from polymq.broker.port.publishing import Route, Template
from polymq.broker.routing.trie import address_of

if TYPE_CHECKING:
    from polymq.broker.accounts.users import Users
    from polymq.broker.admission.asking import Asker
    from polymq.broker.open_port import OpenPort


class PermittedTemplate:
    """A template that was allowed under one version of the users."""

    __slots__ = ("_users", "durability", "inner", "version")

    def __init__(self, inner: Template, users: Users) -> None:
        self.inner = inner
        self.durability = inner.durability
        self.version = users.version
        self._users = users

    @property
    def route(self) -> Route:
        """See `port.Template`."""
        return self.inner.route

    @property
    def valid(self) -> bool:
        """See `port.Template`."""
        return self.version == self._users.version and self.inner.valid

    @property
    def rows_at_once(self) -> int:
        """See `port.Template`."""
        return self.inner.rows_at_once

    @property
    def queues(self) -> Sequence[object]:
        """See `port.Template`."""
        return self.inner.queues

    @property
    def overflowed(self) -> int:
        """See `port.Template`."""
        return self.inner.overflowed

    @property
    def refused(self) -> Sequence[tuple[int, int]]:
        """See `port.Template`."""
        return self.inner.refused


class AnsweredTemplate(PermittedTemplate):
    """A template that a service has allowed, until then."""

    __slots__ = ("_asker", "_generation", "_until")

    def __init__(self, inner: Template, users: Users, asker: Asker, until: float) -> None:
        super().__init__(inner, users)
        self._asker = asker
        self._generation = asker.generation
        self._until = until

    @property
    def valid(self) -> bool:
        """See `port.Template`."""
        return (
            self.version == self._users.version
            and self._asker.counts_still(self._until, self._generation)
            and self.inner.valid
        )


class Permitted:
    """A part of the broker as one principal may use it.

    Args:
        parts: what is behind the checks.
        principal: whose rights count.
    """

    __slots__ = ("_parts", "_principal")

    def __init__(self, parts: OpenPort, principal: Principal) -> None:
        self._parts = parts
        self._principal = principal

    def _allowed(self, template: Template) -> Template:
        """The template behind a permitted one, if it is still allowed. Raises Refused."""
        assert isinstance(template, PermittedTemplate)
        principal = self._principal
        if template.version != principal.users.version:
            route = template.route
            principal.check(Action.PUBLISH, address_of(route.topic, route.tag))
            template.version = principal.users.version
        return template.inner

    def _spent(self, count: int, before: int) -> None:
        """So many messages were published since the log ended at `before`: they count for the
        principal's rates."""
        principal = self._principal
        principal.refresh()
        principal.pace.used(count, self._parts.storage.log.appended - before, principal.now())
