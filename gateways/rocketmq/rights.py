"""What right each request needs, and the gate that asks for it.

Rules:

* `RIGHTS` has a row for every code that this listener serves, and a code without one is refused: a
  test holds the table complete. The gate looks at it before a handler runs, so before anything
  is stored, kept in memory, or said.
* Whoever may do nothing at all is refused for every code, whatever its row says: a client without
  a signature where no rule lets nobody in, a user without a rule, and everybody on a server that
  others can reach and that has no users yet.
* A handler asks again for what only it knows: the tags of each message that it publishes, the
  topics of a list. What is listed is what may be read.
* A right to a consumer group is the right to subscribe to all of its retry topic
  (`broker.accounts.permissions`).
* Rights are remembered by the port until a user or a rule changes, so the gate costs the requests
  of a running client a look into a set.
* What a client keeps without asking again, a place in a group or a lock, ends when rights change
  (`rights_left`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import Final

from polymq.broker.port import REST, BrokerPort, Reason, Refused, decode_name, parse_display_name
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.limits import Limits
from polymq.gateways.rocketmq.mapping import RETRY_PREFIX
from polymq.gateways.rocketmq.protocol import Request
from polymq.remoting.codes import RequestCode
from polymq.remoting.group_bodies import ClientCheck, Heartbeat, LockRequest, decode_body
from polymq.remoting.headers import READER_GROUP, PullFields

NAMES_CACHED_MAX: Final = 4_096
"""Topics whose names were decoded: those that clients ask for again and again."""
NAME_CHARACTERS_MAX: Final = 255
"""More has no stored name, and is not kept."""


class Right(enum.Enum):
    """What somebody has to be allowed to do, beyond anything at all."""

    NOTHING = "what it says is about the server, or filtered by what may be read"
    PUBLISH = "to publish in the topic; the engine asks for each tag"
    RETRY = "the consumer group, whose message comes back; the engine asks for its topic"
    END = "to have prepared the half message; the engine knows who did"
    TOPIC = "to read all of the topic"
    KNOWN = "to read or publish anything in the topic"
    VIEW = "to read the message's topic, which the engine knows"
    CREATE = "to create the topic; the engine asks"
    GROUP = "the consumer group"
    GROUP_AND_TOPIC = "both"
    PULL = "to read all of the topic; and the consumer group, where one pulls"
    BEAT = "every consumer group that it names, and all of every topic that they subscribe to"
    LOCK = "the consumer group, and all of the topics"
    ADMIN_OF_TOPIC = "to administer the topic"
    ADMIN = "to administer everything"


RIGHTS: Final[Mapping[int, Right]] = {
    RequestCode.SEND_MESSAGE: Right.PUBLISH,
    RequestCode.SEND_MESSAGE_V2: Right.PUBLISH,
    RequestCode.SEND_BATCH_MESSAGE: Right.PUBLISH,
    RequestCode.CONSUMER_SEND_BACK: Right.RETRY,
    RequestCode.END_TRANSACTION: Right.END,
    RequestCode.PULL_MESSAGE: Right.PULL,
    RequestCode.LITE_PULL_MESSAGE: Right.PULL,
    RequestCode.QUERY_MESSAGE: Right.TOPIC,
    RequestCode.VIEW_MESSAGE: Right.VIEW,
    RequestCode.QUERY_CONSUMER_OFFSET: Right.GROUP_AND_TOPIC,
    RequestCode.UPDATE_CONSUMER_OFFSET: Right.GROUP_AND_TOPIC,
    RequestCode.SEARCH_OFFSET: Right.TOPIC,
    RequestCode.GET_MAX_OFFSET: Right.TOPIC,
    RequestCode.GET_MIN_OFFSET: Right.TOPIC,
    RequestCode.GET_EARLIEST_TIME: Right.TOPIC,
    RequestCode.HEART_BEAT: Right.BEAT,
    RequestCode.UNREGISTER_CLIENT: Right.NOTHING,  # takes out only what this connection brought
    RequestCode.GET_CONSUMER_LIST: Right.GROUP,
    RequestCode.LOCK_BATCH_MQ: Right.LOCK,
    RequestCode.UNLOCK_BATCH_MQ: Right.LOCK,
    RequestCode.CHECK_CLIENT_CONFIG: Right.NOTHING,  # looks at the expression only
    RequestCode.CREATE_TOPIC: Right.CREATE,
    RequestCode.DELETE_TOPIC: Right.ADMIN_OF_TOPIC,
    RequestCode.GET_TOPIC_CONFIGS: Right.NOTHING,  # those that may be read
    RequestCode.CREATE_GROUP: Right.ADMIN,
    RequestCode.GET_GROUP_CONFIGS: Right.NOTHING,  # those that may be read
    RequestCode.DELETE_GROUP: Right.ADMIN,
    RequestCode.GET_TOPIC_STATS: Right.TOPIC,
    RequestCode.GET_CONSUMER_CONNECTIONS: Right.GROUP,
    RequestCode.GET_PRODUCER_CONNECTIONS: Right.ADMIN,
    RequestCode.GET_CONSUME_STATS: Right.GROUP,  # and of it the topics that may be read
    RequestCode.GET_BROKER_RUNTIME: Right.ADMIN,
    RequestCode.GET_BROKER_CONFIG: Right.ADMIN,
    RequestCode.GET_TOPIC_CONFIG: Right.TOPIC,
    RequestCode.GET_GROUP_CONFIG: Right.GROUP,
    RequestCode.GET_GROUPS_OF_TOPIC: Right.TOPIC,  # and of its groups those that may be read
    RequestCode.GET_TOPICS_OF_GROUP: Right.GROUP,
    RequestCode.RESET_OFFSETS: Right.ADMIN,
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: Right.ADMIN,
    RequestCode.GET_ROUTE: Right.KNOWN,
    RequestCode.GET_BROKER_CLUSTER_INFO: Right.NOTHING,  # the address that it was reached at
    RequestCode.GET_ALL_TOPICS: Right.NOTHING,  # those that may be read
}
"""By code. A code that is served and not here is refused."""

BODIES: Final[Mapping[int, Callable[[bytes], object]]] = {
    RequestCode.HEART_BEAT: partial(decode_body, Heartbeat),
    RequestCode.LOCK_BATCH_MQ: partial(decode_body, LockRequest),
    RequestCode.UNLOCK_BATCH_MQ: partial(decode_body, LockRequest),
    RequestCode.CHECK_CLIENT_CONFIG: partial(decode_body, ClientCheck),
}
"""Whose body says what it is about."""


def admit(port: BrokerPort, request: Request, limits: Limits) -> Request:
    """Let a request in: returns it with its body read.

    Raises:
        Refused: NOT_AUTHENTICATED, FORBIDDEN; LIMIT, a body that names too much.
        BadFields: a body that is none of its kind.
    """
    right = RIGHTS.get(request.code)
    if right is None:
        raise Refused(Reason.FORBIDDEN, f"no right is known for request {request.code}")
    port.principal.check_admitted()
    read = BODIES.get(request.code)
    if read is not None:
        if len(request.body) > limits.client_bytes_max:
            raise Refused(Reason.LIMIT, f"such a body has at most {limits.client_bytes_max} bytes")
        request = replace(request, asked=read(request.body))
        if isinstance(request.asked, Heartbeat):
            _check_size(request.asked, limits)
    check = _CHECKS.get(right)
    if check is not None:
        check(port, request)
    return request


def _check_size(beat: Heartbeat, limits: Limits) -> None:
    groups = len(beat.consumer_data_set) + len(beat.producer_data_set)
    if groups > limits.groups_per_client_max:
        raise Refused(
            Reason.LIMIT,
            f"a client is in at most {limits.groups_per_client_max} groups: start another client",
        )
    for data in beat.consumer_data_set:
        if len(data.subscription_data_set) > limits.subscriptions_per_group_max:
            raise Refused(
                Reason.LIMIT,
                f"a group subscribes to at most {limits.subscriptions_per_group_max} topics",
            )


# --- when rights change -----------------------------------------------------------------------


def rights_left(
    port: BrokerPort, concerned: Callable[[str], bool]
) -> Callable[[str, str, Iterable[str]], bool]:
    """Says whether a user still has the rights to a consumer group and to all of these topics, as
    its heartbeats and locks need them. Each question is put to the engine once, for a group may
    have thousands of members.

    Args:
        concerned: whether a user's rights may have changed; the others' are not looked at.
    """
    is_concerned = cache(concerned)

    @cache
    def may_join(user: str, group: str) -> bool:
        member = port.admission.for_principal(user).principal
        return _allowed(partial(member.check_group, group))

    @cache
    def may_read(user: str, topic: str) -> bool:
        name = _decoded(topic)
        if name is None:
            return True
        reader = port.admission.for_principal(user).principal
        return _allowed(partial(reader.check_read, (name, REST)))

    def has_rights(user: str, group: str, topics: Iterable[str]) -> bool:
        if not is_concerned(user):
            return True
        return may_join(user, group) and all(may_read(user, topic) for topic in topics)

    return has_rights


def _allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except Refused:
        return False
    return True


# --- what each right asks ---------------------------------------------------------------------


def _topic(request: Request) -> str:
    topic = getattr(request.fields, "topic", None)
    assert isinstance(topic, str), request.code
    return topic


def _group(request: Request) -> str:
    for name in ("consumer_group", "group", "group_name"):
        group = getattr(request.fields, name, None)
        if isinstance(group, str):
            return group
    raise AssertionError(f"request {request.code} names no group")


def _check_topic(port: BrokerPort, request: Request) -> None:
    name = _name(request)
    if name is not None:
        port.principal.check_read((name, REST))


def _name(request: Request) -> str | None:
    """The user's name of the topic that a request is about, as `mapping.find_topic` reads it."""
    shown = getattr(request.fields, "user_topic", None)
    return parse_display_name(shown) if shown else _decoded(_topic(request))


@lru_cache(maxsize=NAMES_CACHED_MAX)
def _decoded(topic: str) -> str | None:
    """The user's name of a topic. None for one that does not tell (a hash stands for it): it is
    looked for among the topics that may be read, so it needs no look here."""
    if len(topic) > NAME_CHARACTERS_MAX:
        return None
    try:
        return decode_name(topic)
    except ValueError:
        return None


def _check_publish(port: BrokerPort, request: Request) -> None:
    if _topic(request).startswith(RETRY_PREFIX):
        port.principal.check_group(_topic(request).removeprefix(RETRY_PREFIX))


def _check_group(port: BrokerPort, request: Request) -> None:
    port.principal.check_group(_group(request))


def _check_group_and_topic(port: BrokerPort, request: Request) -> None:
    _check_group(port, request)
    _check_topic(port, request)


def _check_pull(port: BrokerPort, request: Request) -> None:
    assert isinstance(request.fields, PullFields)
    if request.fields.group not in ("", READER_GROUP):
        port.principal.check_group(request.fields.group)
    _check_topic(port, request)


def _check_known(port: BrokerPort, request: Request) -> None:
    name = _name(request)
    if name is not None and name != mapping.AUTO_TOPIC:
        port.principal.check_known(name)


def _check_beat(port: BrokerPort, request: Request) -> None:
    assert isinstance(request.asked, Heartbeat)
    for data in request.asked.consumer_data_set:
        mapping.check_group(data.group_name)
        port.principal.check_group(data.group_name)
        for subscription in data.subscription_data_set:
            name = _decoded(subscription.topic)
            if name is not None:
                port.principal.check_read((name, REST))


def _check_lock(port: BrokerPort, request: Request) -> None:
    assert isinstance(request.asked, LockRequest)
    port.principal.check_group(request.asked.consumer_group)
    for topic in {queue.topic for queue in request.asked.mq_set}:
        name = _decoded(topic)
        if name is not None:
            port.principal.check_read((name, REST))


def _check_admin_of_topic(port: BrokerPort, request: Request) -> None:
    port.principal.check_admin((mapping.user_name(_topic(request)),))


def _check_admin(port: BrokerPort, request: Request) -> None:
    port.principal.check_admin((REST,))


_CHECKS: Final[Mapping[Right, Callable[[BrokerPort, Request], None]]] = {
    Right.PUBLISH: _check_publish,
    Right.RETRY: _check_group,
    Right.TOPIC: _check_topic,
    Right.KNOWN: _check_known,
    Right.GROUP: _check_group,
    Right.GROUP_AND_TOPIC: _check_group_and_topic,
    Right.PULL: _check_pull,
    Right.BEAT: _check_beat,
    Right.LOCK: _check_lock,
    Right.ADMIN_OF_TOPIC: _check_admin_of_topic,
    Right.ADMIN: _check_admin,
}
"""The rights that the gate asks for itself. The others are the engine's to know."""
