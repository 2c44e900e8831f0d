"""The name servers that this broker registers with."""

from __future__ import annotations

from polymq.admin.node import ShownNode
from polymq.admin.operations import Call, Group, Operation, Value
from polymq.admin.pages import Listing, Page, PageQuery, page_of
from polymq.remoting.registrar import ServerState
from polymq.steps import in_steps


class NameServer(Value):
    """A name server.

    Attributes:
        address: where it is.
        registered: whether it has this broker in its table, as far as that is known.
        failure: why the last attempt failed; empty after one that did not.
        failed: attempts since the last that succeeded.
    """

    address: str
    registered: bool
    failure: str
    failed: int


class NameServerHandlers:
    """Carries out the operations on name servers."""

    def __init__(self, node: ShownNode) -> None:
        self._node = node

    def group(self) -> Group:
        """The operations."""
        return Group(
            name="name-servers",
            about="RocketMQ name servers, which tell clients where this broker is.",
            operations=[
                Operation(
                    method="GET",
                    path="/name-servers",
                    name="listNameServers",
                    summary="List the name servers that this broker registers with",
                    right="monitor",
                    handler=self._list,
                    query=PageQuery,
                    answer=Page[NameServer],
                ),
            ],
        )

    async def _list(self, call: Call[PageQuery]) -> Page[NameServer]:
        registration = self._node.registration()
        states = {} if registration is None else registration.states
        listing = Listing(names=states, find=states.get, row=_shown)
        return await in_steps(page_of(listing, call.query))


def _shown(address: str, state: ServerState) -> NameServer:
    return NameServer(
        address=address,
        registered=state.registered,
        failure=state.failure,
        failed=state.failed_count,
    )
