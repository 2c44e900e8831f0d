"""The tables of a name server: brokers, clusters, topics, and who is alive. Pure.

    topicQueueTable     topic -> broker name -> its queues there
    brokerAddrTable     broker name -> its cluster, and an address for each id
    clusterAddrTable    cluster -> broker names (kept as the brokers' clusters)
    brokerLiveTable     (cluster, address) -> last word, patience, data version, connection
    filterServerTable   kept with the address that it came from

Rules of this file:

* Time comes as an argument, in seconds of any clock that does not go back.
* A broker group is in the tables as long as one of its addresses is alive. The topics of a group
  go with it, and a topic goes with its last group.
* A registration refreshes; topics are looked at only when the data version differs from the one
  that is known, and only if it comes from the master, or from the slave that acts as one.
* A registration of a master of old (a lower state version than the one of the master that is
  alive) is refused: the tables would name it, and clients would write to it.
* Names are checked and counted before anything is changed: a refused registration changes nothing.
* Who wiped a group's write permission means the group, so what it registers later has none either,
  until it is given back or the group has gone. (RocketMQ forgets it when a topic changes.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from polymq.namesrv.errors import BrokersFull, Refused, TopicsFull
from polymq.namesrv.limits import NameServerLimits
from polymq.remoting.bodies import BrokerData, QueueData, TopicRoute
from polymq.remoting.codes import MASTER_ID, PERMISSION_WRITE
from polymq.remoting.registration import DataVersion, Registration, TopicConfig

Address = tuple[str, str]
"""Cluster, and `host:port`."""
ConnectionId = int

_BLANK: Final = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """A broker as it names itself."""

    cluster: str
    name: str
    address: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A registration without its topics."""

    identity: BrokerIdentity
    ha_address: str = ""
    silence_seconds: float
    acting_master: bool = False
    complete: bool = False
    """Topics that the registration lacks are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """What a slave is told of its master."""

    address: str
    ha_address: str


@dataclass(slots=True)
class _Group:
    """The members of one broker name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    wiped: bool = False  # of its write permission, by an administrator
    topics: set[str] = field(default_factory=set)  # what topicQueueTable has of it


@dataclass(slots=True)
class _Live:
    """An address that was heard of."""

    identity: BrokerIdentity
    heard: float
    silence_seconds: float
    version: DataVersion
    connection: ConnectionId
    ha_address: str
    filter_servers: tuple[str, ...]


class Tables:
    """All that a name server knows of brokers."""

    def __init__(self, limits: NameServerLimits) -> None:
        self._limits = limits
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, _Group] = {}
        self._live: dict[Address, _Live] = {}
        self._by_connection: dict[ConnectionId, set[Address]] = {}

    @property
    def broker_count(self) -> int:
        """Addresses that are alive."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """Topics with at least one broker."""
        return len(self._topics)

    # --- what brokers say -----------------------------------------------------------------

    def register(
        self, hello: Hello, registration: Registration, *, now: float, connection: ConnectionId
    ) -> Master | None:
        """Take a broker in, or hear again from it.

        Returns:
            For a slave, where its master is if there is one.

        Raises:
            Refused: nothing was changed.
        """
        identity, table = hello.identity, registration.topics
        before = self._live.get((identity.cluster, identity.address))
        self._check(hello, registration, before)
        # With another name or id at the same address nothing known is of this broker.
        changed = (
            before is None or before.identity != identity or before.version != table.data_version
        )
        self._join(hello)
        if changed and self._leads(identity):
            self._take_topics(identity.name, table.topic_config_table, complete=hello.complete)
        self._live[identity.cluster, identity.address] = _Live(
            identity=identity,
            heard=now,
            silence_seconds=hello.silence_seconds,
            version=table.data_version,
            connection=connection,
            ha_address=hello.ha_address,
            filter_servers=tuple(registration.filter_server_list or ()),
        )
        if before is not None:
            self._unbind(before.connection, (identity.cluster, identity.address))
        self._by_connection.setdefault(connection, set()).add((identity.cluster, identity.address))
        return self._master_of(identity)

    def unregister(self, identity: BrokerIdentity) -> bool:
        """A broker takes its leave. False if it was not there."""
        live = self._live.get((identity.cluster, identity.address))
        if live is None or live.identity.name != identity.name:
            return False
        self._remove(live)
        return True

    def heard(self, cluster: str, address: str, *, now: float, connection: ConnectionId) -> bool:
        """A sign of life without a registration. False if the broker has to register first.

        It counts for the connection, too: a broker that came back over another one must not go
        with its old one.
        """
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.heard = now
        if live.connection != connection:
            before, live.connection = live.connection, connection
            self._unbind(before, (cluster, address))
            self._by_connection.setdefault(connection, set()).add((cluster, address))
        return True

    def version(self, identity: BrokerIdentity) -> DataVersion | None:
        """The data version that a broker registered; None if it is not here."""
        live = self._live.get((identity.cluster, identity.address))
        return live.version if live is not None and live.identity == identity else None

    # --- who is gone ----------------------------------------------------------------------

    def evict_silent(self, now: float) -> list[tuple[BrokerIdentity, ConnectionId]]:
        """Take out all brokers that were silent for too long; with the connection of each."""
        gone = [live for live in self._live.values() if now - live.heard > live.silence_seconds]
        for live in gone:
            self._remove(live)
        return [(live.identity, live.connection) for live in gone]

    def connection_lost(self, connection: ConnectionId) -> list[BrokerIdentity]:
        """Take out the brokers that registered last over this connection."""
        gone = [self._live[address] for address in self._by_connection.get(connection, ())]
        for live in gone:
            self._remove(live)
        return [live.identity for live in gone]

    # --- what clients ask -----------------------------------------------------------------

    def route(self, topic: str, order: str | None = None) -> TopicRoute | None:
        """Where a topic lives; None if nowhere.

        Args:
            order: the order of its queues, from the configuration.
        """
        queues = self._topics.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        return TopicRoute(
            broker_datas=[self._to_clients(name) for name in names],
            queue_datas=[self._with_permission(queues[name]) for name in names],
            filter_server_table={
                live.identity.address: list(live.filter_servers)
                for name in names
                for live in self._members(name)
                if live.filter_servers
            },
            order_topic_conf=order,
        )

    def topics(self) -> list[str]:
        """All topics."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that a cluster's brokers have."""
        found: set[str] = set()
        for group in self._groups.values():
            if group.cluster == cluster:
                found |= group.topics
        return sorted(found)

    def clusters(self) -> dict[str, list[str]]:
        """The broker names of each cluster."""
        table: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items()):
            table.setdefault(group.cluster, []).append(name)
        return table

    def brokers(self) -> Iterator[BrokerData]:
        """All broker groups."""
        for name in sorted(self._groups):
            yield self._broker_data(name)

    def broker(self, cluster: str, name: str) -> BrokerData | None:
        """One broker group."""
        group = self._groups.get(name)
        if group is None or group.cluster != cluster:
            return None
        return self._broker_data(name)

    # --- what administrators do -----------------------------------------------------------

    def set_writable(self, name: str, writable: bool) -> int:
        """Wipe or restore a group's write permission; the count of topics that it changed."""
        group = self._groups.get(name)
        if group is None or group.wiped is not writable:
            return 0
        group.wiped = not writable
        return sum(
            bool(self._topics[topic][name].perm & PERMISSION_WRITE) for topic in group.topics
        )

    def delete_topic(self, topic: str, cluster: str | None) -> bool:
        """Forget a topic, in one cluster or all. False if it was not there."""
        names = [
            name
            for name in self._topics.get(topic, ())
            if cluster is None or self._groups[name].cluster == cluster
        ]
        for name in names:
            self._drop_topic(topic, name)
        return bool(names)

    # --- keeping the tables ---------------------------------------------------------------

    def _check(self, hello: Hello, registration: Registration, before: _Live | None) -> None:
        identity, table = hello.identity, registration.topics
        limits = self._limits
        names = (identity.cluster, identity.name, identity.address, *table.topic_config_table)
        for name in (*names, *(registration.filter_server_list or ())):
            if not 0 < len(name) <= limits.name_characters_max:
                raise Refused(f"a name has 1 to {limits.name_characters_max} characters")
        if before is None and len(self._live) >= limits.brokers_max:
            raise BrokersFull(f"{limits.brokers_max} brokers are registered, which is the most")
        if len(registration.filter_server_list or ()) > limits.filter_servers_max:
            raise Refused(f"a broker has at most {limits.filter_servers_max} filter servers")
        count = len(table.topic_config_table)
        if count > limits.topics_of_broker_max:
            raise TopicsFull(f"a broker has at most {limits.topics_of_broker_max} topics")
        if len(self._topics) + count > limits.topics_max:  # counting exactly only where it matters
            new = sum(topic not in self._topics for topic in table.topic_config_table)
            if len(self._topics) + new > limits.topics_max:
                raise TopicsFull(f"{limits.topics_max} topics are registered, which is the most")
        group = self._groups.get(identity.name)
        if group is None:
            return
        if group.cluster != identity.cluster:
            raise Refused(f"broker {identity.name} is of cluster {group.cluster}")
        present = group.addresses.get(identity.broker_id)
        if present is not None and present != identity.address:
            live = self._live.get((identity.cluster, present))
            if live is not None and live.version.state_version > table.data_version.state_version:
                raise Refused(f"broker {identity.name} has a newer master or slave at {present}")

    def _join(self, hello: Hello) -> None:
        identity = hello.identity
        replaced = self._live.get((identity.cluster, identity.address))
        if replaced is not None and replaced.identity.name != identity.name:
            self._remove(replaced)  # one address is one broker
        group = self._groups.get(identity.name)
        if group is None:
            group = self._groups[identity.name] = _Group(cluster=identity.cluster)
        group.acting_master = hello.acting_master
        # A slave that became master must not stay in the group as a slave.
        for broker_id in [
            key for key, known in group.addresses.items() if known == identity.address
        ]:
            del group.addresses[broker_id]
        group.addresses[identity.broker_id] = identity.address

    def _leads(self, identity: BrokerIdentity) -> bool:
        group = self._groups[identity.name]
        if identity.broker_id == MASTER_ID:
            return True
        return self._is_acted_for(identity.name) and identity.broker_id == min(group.addresses)

    def _take_topics(self, name: str, table: dict[str, TopicConfig], *, complete: bool) -> None:
        group = self._groups[name]
        for topic, config in table.items():
            self._topics.setdefault(topic, {})[name] = QueueData(
                broker_name=name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm,
                topic_sys_flag=config.topic_sys_flag,
            )
            group.topics.add(topic)
        if complete:
            for topic in group.topics - table.keys():
                self._drop_topic(topic, name)

    def _drop_topic(self, topic: str, name: str) -> None:
        self._groups[name].topics.discard(topic)
        queues = self._topics[topic]
        del queues[name]
        if not queues:
            del self._topics[topic]

    def _remove(self, live: _Live) -> None:
        identity = live.identity
        del self._live[identity.cluster, identity.address]
        self._unbind(live.connection, (identity.cluster, identity.address))
        group = self._groups.get(identity.name)
        if group is None:
            return
        # Only its own place: another machine may have taken the id over.
        if group.addresses.get(identity.broker_id) == identity.address:
            del group.addresses[identity.broker_id]
        if not group.addresses:
            for topic in list(group.topics):
                self._drop_topic(topic, identity.name)
            del self._groups[identity.name]

    def _unbind(self, connection: ConnectionId, address: Address) -> None:
        addresses = self._by_connection.get(connection)
        if addresses is not None:
            addresses.discard(address)
            if not addresses:
                del self._by_connection[connection]

    # --- reading the tables ---------------------------------------------------------------

    def _members(self, name: str) -> Iterable[_Live]:
        group = self._groups[name]
        for address in group.addresses.values():
            live = self._live.get((group.cluster, address))
            if live is not None:
                yield live

    def _master_of(self, identity: BrokerIdentity) -> Master | None:
        if identity.broker_id == MASTER_ID:
            return None
        group = self._groups[identity.name]
        address = group.addresses.get(MASTER_ID)
        live = None if address is None else self._live.get((group.cluster, address))
        if address is None or live is None:
            return None
        return Master(address=address, ha_address=live.ha_address)

    def _broker_data(self, name: str) -> BrokerData:
        group = self._groups[name]
        addresses = {str(key): address for key, address in sorted(group.addresses.items())}
        return BrokerData(
            cluster=group.cluster,
            broker_name=name,
            broker_addrs=addresses,
            enable_acting_master=group.acting_master,
        )

    def _to_clients(self, name: str) -> BrokerData:
        """The group as routes name it: with its acting master in the master's place."""
        data = self._broker_data(name)
        if self._is_acted_for(name):
            addresses = data.broker_addrs
            addresses[str(MASTER_ID)] = addresses.pop(str(min(self._groups[name].addresses)))
        return data

    def _is_acted_for(self, name: str) -> bool:
        """Whether the slave with the lowest id stands in for the master: to read from only."""
        group = self._groups[name]
        return group.acting_master and MASTER_ID not in group.addresses

    def _with_permission(self, queues: QueueData) -> QueueData:
        name = queues.broker_name
        if not self._groups[name].wiped and not self._is_acted_for(name):
            return queues
        return QueueData(
            broker_name=name,
            read_queue_nums=queues.read_queue_nums,
            write_queue_nums=queues.write_queue_nums,
            perm=queues.perm & ~PERMISSION_WRITE,
            topic_sys_flag=queues.topic_sys_flag,
        )
