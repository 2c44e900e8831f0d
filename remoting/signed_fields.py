"""Which fields a signed request may have.

A signature covers the values of all fields in the order of their names, and not where one ends and
the next begins (`remoting.signing`). Who can change a request on its way could so cut a piece off
its body and put it into a field of a name that nobody looks at: the signature would still fit, and
another message would be stored. So a signed request has no field that is unknown for its code.

What clients and brokers send and our servers do not need is known, too, and named here: the headers
of RocketMQ up to 5.5 in Java, whose fields those of other languages are a part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from polymq.remoting.broker_fields import SHORT_FIELDS
from polymq.remoting.codes import RequestCode
from polymq.remoting.headers import Fields, wire_names
from polymq.remoting.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

EVERYWHERE: Final = frozenset(
    {
        ACCESS_KEY,
        SECURITY_TOKEN,
        SIGNATURE,
        *("__ZONE_NAME", "__ZONE_MODE"),  # where a client is
        *("ns", "nsd", "bname", "oway", "lo"),  # of every header of RocketMQ 5
        "ReqT",  # kind of a request, as streams send it
        *("OnsChannel", "SignatureMethod"),  # ali-ons for Node, and RocketMQ's client in C++
    }
)
"""Of any request."""

_PAGES: Final = {"dataVersion"}
UNUSED: Final[Mapping[int, frozenset[str]]] = {
    RequestCode.BROKER_HEARTBEAT: frozenset(
        {"epoch", "maxOffset", "confirmOffset", "heartbeatTimeoutMills", "electionPriority"}
    ),
    RequestCode.END_TRANSACTION: frozenset({"topic"}),
    RequestCode.PULL_MESSAGE: frozenset({"requestSource", "proxyFrowardClientId"}),
    RequestCode.LITE_PULL_MESSAGE: frozenset({"requestSource", "proxyFrowardClientId"}),
    RequestCode.QUERY_MESSAGE: frozenset({"indexType", "lastKey"}),
    RequestCode.SEARCH_OFFSET: frozenset({"boundaryType"}),
    RequestCode.GET_MAX_OFFSET: frozenset({"committed"}),
    RequestCode.CREATE_TOPIC: frozenset({"force"}),
    RequestCode.GET_TOPIC_CONFIGS: frozenset({"topicSeq", "maxTopicNum", *_PAGES}),
    RequestCode.GET_GROUP_CONFIGS: frozenset({"groupSeq", "maxGroupNum", *_PAGES}),
    RequestCode.GET_CONSUME_STATS: frozenset({"topicList"}),
    RequestCode.RESET_OFFSETS: frozenset({"isC"}),
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: frozenset({"clusterName"}),
    RequestCode.GET_ROUTE: frozenset({"acceptStandardJsonOnly"}),
}
"""Of some requests: what clients send besides, and what has no meaning here."""


def unknown_field(code: int, kind: type[Fields], fields: Mapping[str, str]) -> str | None:
    """A field, as it travelled, that a request of this code cannot have; None if there is none.

    Args:
        kind: the header of the code.
    """
    known = _known(code, kind)
    return next((name for name in fields if name not in known), None)


@cache
def _known(code: int, kind: type[Fields]) -> frozenset[str]:
    if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        return EVERYWHERE | SHORT_FIELDS
    return EVERYWHERE | wire_names(kind) | UNUSED.get(code, frozenset())
