"""What a document of definitions consists of: a struct for each kind of definition. Pure.

A member that has its default is not written, so that a document stays short, and its differences
from an older one stay small. Some members have a default that means *leave it as it is*
(LEFT_ALONE). A document that somebody wrote by hand, without secrets, can therefore be imported
where the users exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from polymq.broker.accounts import quotas

FORMAT: Final = "polymq-definitions"
"""What the member `format` of every document says."""
VERSION: Final = 1
"""Of the format that this program writes. It reads this one and all before it."""
QUEUES_MAX: Final = 1024
"""Of one topic, as the admin API has it."""
DELETED: Final = ":deleted"
"""Behind the name of an owner whose user does not exist any more."""

LEFT_ALONE: Final = frozenset({"password_hash", "access_keys", "owner", "dead_letter_owner"})
"""Members that an existing object keeps where the document does not have them."""

Count = Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None


class Definition(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One definition of a document."""


class UserQuotas(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a user may use over all its connections; null: there is no limit.

    Attributes:
        connections: at a time.
        sessions: MQTT sessions that outlive their connections.
        subscriptions: of all its MQTT sessions together.
        inflight: unacknowledged messages of one MQTT session.
        queues: AMQP queues that it declared.
        messages_per_second: that it publishes.
        bytes_per_second: that it publishes, as stored.
    """

    connections: Count = quotas.DEFAULT.connections
    sessions: Count = quotas.DEFAULT.sessions
    subscriptions: Count = quotas.DEFAULT.subscriptions
    inflight: Count = quotas.DEFAULT.inflight
    queues: Count = quotas.DEFAULT.queues
    messages_per_second: Count = quotas.DEFAULT.messages_per_second
    bytes_per_second: Count = quotas.DEFAULT.bytes_per_second


class UserKey(Definition):
    """An access key of a user.

    Attributes:
        access_key: its name.
        secret_key: what programs sign with, readable.
        created_ms: when it was made, in milliseconds since the epoch.
    """

    access_key: str
    secret_key: str
    created_ms: int = 0


class UserDefinition(Definition):
    """A user.

    Attributes:
        name: of the user.
        password_hash: as the log has it; without it, an existing user keeps its password.
        roles: whose rules apply to it.
        disabled: whether it cannot log in.
        quotas: those that differ from the defaults.
        access_keys: what its programs sign with, oldest first; without it, an existing user keeps
            those that it has.
    """

    name: str
    password_hash: str | None = None
    roles: list[str] = []
    disabled: bool = False
    quotas: UserQuotas = UserQuotas()
    access_keys: list[UserKey] | None = None


class PermissionDefinition(Definition):
    """A rule.

    Attributes:
        subject: the name of a user, or role: and the name of a role.
        effect: what it does.
        action: what it allows or denies.
        topic: a pattern of topics, such as sensors.#.
    """

    subject: str
    effect: Literal["allow", "deny"]
    action: Literal["publish", "subscribe", "create", "monitor", "operate", "admin"]
    topic: str


class RabbitmqPermissionDefinition(Definition):
    """RabbitMQ's expressions, as they were written for a user. The rules that they stand for are
    definitions of their own.

    Attributes:
        user: whose they are.
        configure: the expression for creating.
        write: the expression for publishing.
        read: the expression for subscribing.
    """

    user: str
    configure: str
    write: str
    read: str


class BanDefinition(Definition):
    """A ban that is in force.

    Attributes:
        kind: what is banned.
        value: a client identifier, a user name, or an address or network.
        reason: why.
        until_ms: when it ends, in milliseconds since the epoch; without it, it does not.
        since_ms: when it was added.
        by: who added it.
    """

    kind: Literal["client_id", "user", "address"]
    value: str
    reason: str = ""
    until_ms: int | None = None
    since_ms: int = 0
    by: str = ""


class TopicDefinition(Definition):
    """A topic.

    Attributes:
        name: as clients write it.
        queues: how many queues it has.
        settings: those that were chosen for it; the others are the broker's defaults.
    """

    name: str
    queues: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 1
    settings: dict[str, str | int] = {}


class ExchangeDefinition(Definition):
    """A durable exchange of AMQP. Topics that are exchanges by themselves are not among them.

    Attributes:
        name: of the exchange.
        type: how it reads its bindings.
        auto_delete: whether it goes with its last binding.
        internal: whether clients cannot publish to it.
        arguments: what it was declared with.
        owner: whose rights its alternate exchange is used with.
    """

    name: str
    type: str
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}
    owner: str | None = None


class QueueDefinition(Definition):
    """A durable queue of AMQP. Its dead letters, limits and priorities are arguments.

    Attributes:
        name: of the queue.
        auto_delete: whether it goes with its last consumer.
        arguments: what it was declared with.
        owner: who declared it: a user, or nobody.
        dead_letter_owner: whose rights its dead letters are published with, if not its owner's.
    """

    name: str
    auto_delete: bool = False
    arguments: dict[str, Any] = {}
    owner: str | None = None
    dead_letter_owner: str | None = None


class BindingDefinition(Definition):
    """A binding between durable objects, but for those that every queue has by its name.

    Attributes:
        source: an exchange.
        destination: a queue or an exchange.
        kind: of the destination.
        routing_key: what it is bound by.
        arguments: what a headers exchange compares.
        exact: the arguments as the log has them, if JSON cannot say them.
        owner: with whose rights a binding between exchanges carries messages.
    """

    source: str
    destination: str
    kind: Literal["queue", "exchange"] = "queue"
    routing_key: str = ""
    arguments: dict[str, Any] = {}
    exact: str | None = None
    owner: str | None = None


class ConsumerGroupDefinition(Definition):
    """A consumer group of RocketMQ. How far it has come is no definition.

    Attributes:
        name: of the group.
        settings: those that were set, in RocketMQ's words.
    """

    name: str
    settings: dict[str, Any] = {}


class SubscriptionDefinition(Definition):
    """A subscription of HTTP; one with a sink is a webhook.

    Attributes:
        name: of the subscription.
        topic: whose events it gets.
        sink: the whole URL that events are delivered to, secrets included; without it, clients
            receive from the subscription.
        filters: as in the CloudEvents Subscriptions API.
        config: likewise.
        granted_per_minute: what its sink has allowed; without it, there is no bound.
        disabled: why nothing is delivered.
        owner: whose rights a webhook has.
    """

    name: str
    topic: str
    sink: str | None = None
    filters: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    granted_per_minute: int | None = None
    disabled: str | None = None
    owner: str | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """All definitions of a broker. A section that is left out is empty.

    Attributes:
        format: always polymq-definitions.
        version: of the format.
        users: with the hashes of their passwords, and with their access keys.
        permissions: rules.
        rabbitmq_permissions: expressions of RabbitMQ, as they were written.
        bans: who may not connect.
        topics: with their settings.
        exchanges: of AMQP, the durable ones.
        queues: of AMQP, the durable ones.
        bindings: from exchanges to queues and to exchanges.
        consumer_groups: of RocketMQ.
        subscriptions: of HTTP, webhooks among them.
    """

    format: Literal["polymq-definitions"]
    version: int
    users: list[UserDefinition] = []
    permissions: list[PermissionDefinition] = []
    rabbitmq_permissions: list[RabbitmqPermissionDefinition] = []
    bans: list[BanDefinition] = []
    topics: list[TopicDefinition] = []
    exchanges: list[ExchangeDefinition] = []
    queues: list[QueueDefinition] = []
    bindings: list[BindingDefinition] = []
    consumer_groups: list[ConsumerGroupDefinition] = []
    subscriptions: list[SubscriptionDefinition] = []


SECTIONS: Final = tuple(
    field.name
    for field in msgspec.structs.fields(Document)
    if field.name not in ("format", "version")
)
"""In the order in which they are written, and imported: what others refer to comes first."""
