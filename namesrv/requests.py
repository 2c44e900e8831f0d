"""What a name server answers. Pure: a command in, an answer out.

`HANDLERS` names every request that is served; a code that is not in it is answered as RocketMQ's
name servers do, with 3. Errors leave the connection usable:

    1  SYSTEM_ERROR     a field is missing or wrong, the registration is damaged or refused
    2  SYSTEM_BUSY      a limit is reached; clients and brokers try again later
    16 NO_PERMISSION    the request is not signed with the name server's access key
    17 TOPIC_NOT_EXIST  no broker has the topic
    22 QUERY_NOT_FOUND  no such key
    29 INVALID_PARAMETER  a signed request has a field that is unknown for its code
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from polymq.namesrv.errors import Busy, NotAllowed, Refused, UnknownField
from polymq.namesrv.key_values import ORDER_NAMESPACE, Change, KeyValues
from polymq.namesrv.limits import NameServerLimits
from polymq.namesrv.login import Login
from polymq.namesrv.tables import BrokerIdentity, ConnectionId, Hello, Tables
from polymq.remoting.bodies import (
    BrokerMembers,
    ClusterInfo,
    MemberGroup,
    TopicList,
    encode_body,
)
from polymq.remoting.bodies import KeyValues as KeyValuesBody
from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.errors import BadFields
from polymq.remoting.frames import Command
from polymq.remoting.headers import TopicFields, read_fields, write_fields
from polymq.remoting.name_fields import (
    BrokerFields,
    BrokerNameFields,
    ClusterFields,
    DataVersionAnswer,
    DeleteTopicFields,
    GroupFields,
    HeartbeatFields,
    KeyFields,
    KeyValueFields,
    NamespaceFields,
    RegisterAnswer,
    RegisterFields,
    RestoreAnswer,
    ValueAnswer,
    WipeAnswer,
)
from polymq.remoting.registration import (
    body_checksum,
    decode_data_version,
    decode_registration,
    encode_data_version,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back.

    Attributes:
        change: of the configuration; to be kept and accepted before the answer goes.
    """

    code: int = ResponseCode.SUCCESS
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request and its circumstances."""

    command: Command
    connection: ConnectionId
    now: float


@dataclass(slots=True)
class _Allowance:
    """How many registrations a connection may send right now."""

    count: float
    since: float


class Requests:
    """The name server's logic: its tables, its configuration, and who asks too often.

    Args:
        login: what changes have to be signed with; None: everybody may change everything.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        key_values: KeyValues,
        limits: NameServerLimits,
        login: Login | None = None,
    ) -> None:
        self.tables = tables
        self.key_values = key_values
        self.refused_count = 0
        """Registrations that were refused, for whatever reason, and requests without a key."""
        self._limits = limits
        self._login = login
        self._allowances: dict[ConnectionId, _Allowance] = {}

    def handle(self, asked: Asked) -> Answer:
        """The answer to a request, oneway ones included, whose answer nobody gets."""
        handler = HANDLERS.get(asked.command.code)
        if handler is None:
            text = f" request type {asked.command.code} not supported"
            return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text)
        try:
            if self._login is not None:
                self._login.check(asked.command)
            return handler(self, asked)
        except NotAllowed as error:
            self.refused_count += 1
            return Answer(code=ResponseCode.NO_PERMISSION, remark=str(error))
        except UnknownField as error:
            self.refused_count += 1
            return Answer(code=ResponseCode.INVALID_PARAMETER, remark=str(error))
        except Busy as error:
            return Answer(code=ResponseCode.SYSTEM_BUSY, remark=str(error))
        except (Refused, BadFields) as error:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))

    def connection_lost(self, connection: ConnectionId) -> list[BrokerIdentity]:
        """Forget a connection; the brokers that went with it."""
        self._allowances.pop(connection, None)
        return self.tables.connection_lost(connection)

    # --- brokers --------------------------------------------------------------------------

    def register(self, asked: Asked) -> Answer:
        """103."""
        try:
            return self._register(asked)
        except (Refused, BadFields):
            self.refused_count += 1
            raise

    def _register(self, asked: Asked) -> Answer:
        self._count_registration(asked)
        command, limits = asked.command, self._limits
        header = read_fields(RegisterFields, command.fields)
        if header.body_crc32 and body_checksum(command.body) != header.body_crc32:
            raise Refused("crc32 not match: the body of the registration is damaged")
        registration = decode_registration(command.body)
        silence = limits.silence_seconds_max
        if header.heartbeat_timeout_millis is not None:
            silence = header.heartbeat_timeout_millis / 1000
            silence = max(silence, limits.silence_seconds_floor)
            silence = min(silence, limits.silence_seconds_ceiling)
        hello = Hello(
            identity=_identity(header),
            ha_address=header.ha_server_addr,
            silence_seconds=silence,
            acting_master=bool(header.enable_acting_master),
            complete=header.pmq_complete,
        )
        master = self.tables.register(
            hello, registration, now=asked.now, connection=asked.connection
        )
        answer = RegisterAnswer(
            ha_server_addr=None if master is None else master.ha_address,
            master_addr=None if master is None else master.address,
        )
        order = self.key_values.namespace(ORDER_NAMESPACE) or {}
        return Answer(fields=write_fields(answer), body=encode_body(KeyValuesBody(table=order)))

    def _count_registration(self, asked: Asked) -> None:
        limits = self._limits
        allowance = self._allowances.get(asked.connection)
        if allowance is None:
            allowance = _Allowance(limits.registrations_burst, asked.now)
            self._allowances[asked.connection] = allowance
        earned = (asked.now - allowance.since) * limits.registrations_per_second
        allowance.count = min(allowance.count + earned, limits.registrations_burst)
        allowance.since = asked.now
        if allowance.count < 1:
            raise Busy(f"more than {limits.registrations_per_second:g} registrations a second")
        allowance.count -= 1

    def unregister(self, asked: Asked) -> Answer:
        """104. A broker that is not there is no error: it wanted to be gone."""
        self.tables.unregister(_identity(read_fields(BrokerFields, asked.command.fields)))
        return Answer()

    def heartbeat(self, asked: Asked) -> Answer:
        """904."""
        header = read_fields(HeartbeatFields, asked.command.fields)
        heard = self.tables.heard(
            header.cluster_name, header.broker_addr, now=asked.now, connection=asked.connection
        )
        if not heard:
            raise Refused(f"broker {header.broker_name} at {header.broker_addr} is not registered")
        return Answer()

    def data_version(self, asked: Asked) -> Answer:
        """322: whether a broker has to send its topics. If not, this was its sign of life."""
        identity = _identity(read_fields(BrokerFields, asked.command.fields))
        asked_version = decode_data_version(asked.command.body)
        known = self.tables.version(identity)
        changed = known != asked_version
        if not changed:
            self.tables.heard(
                identity.cluster, identity.address, now=asked.now, connection=asked.connection
            )
        return Answer(
            fields=write_fields(DataVersionAnswer(changed=changed)),
            body=b"" if known is None else encode_data_version(known),
        )

    # --- clients --------------------------------------------------------------------------

    def route(self, asked: Asked) -> Answer:
        """105."""
        topic = read_fields(TopicFields, asked.command.fields).topic
        route = self.tables.route(topic, self.key_values.get(ORDER_NAMESPACE, topic))
        if route is None:
            text = f"No topic route info in name server for the topic: {topic}"
            return Answer(code=ResponseCode.TOPIC_NOT_EXIST, remark=text)
        return Answer(body=encode_body(route))

    def all_topics(self, _asked: Asked) -> Answer:
        """206."""
        return Answer(body=encode_body(TopicList(topic_list=self.tables.topics())))

    # --- administrators -------------------------------------------------------------------

    def cluster_info(self, _asked: Asked) -> Answer:
        """106."""
        brokers = {data.broker_name: data for data in self.tables.brokers()}
        clusters = self.tables.clusters()
        return Answer(
            body=encode_body(ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters))
        )

    def member_group(self, asked: Asked) -> Answer:
        """901. A group that is not there has no members."""
        header = read_fields(GroupFields, asked.command.fields)
        data = self.tables.broker(header.cluster_name, header.broker_name)
        members = BrokerMembers(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_addrs={} if data is None else data.broker_addrs,
        )
        return Answer(body=encode_body(MemberGroup(broker_member_group=members)))

    def wipe_write_permission(self, asked: Asked) -> Answer:
        """205."""
        name = read_fields(BrokerNameFields, asked.command.fields).broker_name
        count = self.tables.set_writable(name, False)
        return Answer(fields=write_fields(WipeAnswer(wipe_topic_count=count)))

    def add_write_permission(self, asked: Asked) -> Answer:
        """327."""
        name = read_fields(BrokerNameFields, asked.command.fields).broker_name
        count = self.tables.set_writable(name, True)
        return Answer(fields=write_fields(RestoreAnswer(add_topic_count=count)))

    def topics_of_cluster(self, asked: Asked) -> Answer:
        """224."""
        cluster = read_fields(ClusterFields, asked.command.fields).cluster
        topics = self.tables.topics_of_cluster(cluster)
        return Answer(body=encode_body(TopicList(topic_list=topics)))

    def system_topics(self, _asked: Asked) -> Answer:
        """304: names of clusters and brokers count as topics of the system."""
        clusters = self.tables.clusters()
        names = [name for cluster in clusters for name in (cluster, *clusters[cluster])]
        first = next(
            (address for data in self.tables.brokers() for address in data.broker_addrs.values()),
            None,
        )
        return Answer(body=encode_body(TopicList(topic_list=names, broker_addr=first)))

    def delete_topic(self, asked: Asked) -> Answer:
        """216. A topic that is not there is no error: it shall be gone."""
        header = read_fields(DeleteTopicFields, asked.command.fields)
        self.tables.delete_topic(header.topic, header.cluster_name)
        return Answer()

    def put_key(self, asked: Asked) -> Answer:
        """100."""
        header = read_fields(KeyValueFields, asked.command.fields)
        return Answer(change=self.key_values.put(header.namespace, header.key, header.value))

    def get_key(self, asked: Asked) -> Answer:
        """101."""
        header = read_fields(KeyFields, asked.command.fields)
        value = self.key_values.get(header.namespace, header.key)
        if value is None:
            text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=text)
        return Answer(fields=write_fields(ValueAnswer(value=value)))

    def delete_key(self, asked: Asked) -> Answer:
        """102. A key that is not there is no error."""
        header = read_fields(KeyFields, asked.command.fields)
        return Answer(change=self.key_values.delete(header.namespace, header.key))

    def list_keys(self, asked: Asked) -> Answer:
        """219."""
        namespace = read_fields(NamespaceFields, asked.command.fields).namespace
        values = self.key_values.namespace(namespace)
        if values is None:
            text = f"No config item, Namespace: {namespace}"
            return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=text)
        return Answer(body=encode_body(KeyValuesBody(table=values)))


HANDLERS: Final[dict[int, Callable[[Requests, Asked], Answer]]] = {
    RequestCode.PUT_KV_CONFIG: Requests.put_key,
    RequestCode.GET_KV_CONFIG: Requests.get_key,
    RequestCode.DELETE_KV_CONFIG: Requests.delete_key,
    RequestCode.GET_KV_LIST: Requests.list_keys,
    RequestCode.REGISTER_BROKER: Requests.register,
    RequestCode.UNREGISTER_BROKER: Requests.unregister,
    RequestCode.BROKER_HEARTBEAT: Requests.heartbeat,
    RequestCode.QUERY_DATA_VERSION: Requests.data_version,
    RequestCode.GET_ROUTE: Requests.route,
    RequestCode.GET_ALL_TOPICS: Requests.all_topics,
    RequestCode.GET_BROKER_CLUSTER_INFO: Requests.cluster_info,
    RequestCode.GET_BROKER_MEMBER_GROUP: Requests.member_group,
    RequestCode.WIPE_WRITE_PERMISSION: Requests.wipe_write_permission,
    RequestCode.ADD_WRITE_PERMISSION: Requests.add_write_permission,
    RequestCode.GET_TOPICS_BY_CLUSTER: Requests.topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPICS: Requests.system_topics,
    RequestCode.DELETE_TOPIC_IN_NAME_SERVER: Requests.delete_topic,
}


def _identity(header: BrokerFields) -> BrokerIdentity:
    return BrokerIdentity(
        cluster=header.cluster_name,
        name=header.broker_name,
        address=header.broker_addr,
        broker_id=header.broker_id,
    )
