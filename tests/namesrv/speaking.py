"""Requests to a name server, as brokers, clients and administrators send them, for tests."""

from __future__ import annotations

from polymq.namesrv.key_values import KeyValues
from polymq.namesrv.limits import NameServerLimits
from polymq.namesrv.login import Login
from polymq.namesrv.requests import Answer, Asked, Requests
from polymq.namesrv.tables import Tables
from polymq.remoting.bodies import TopicRoute, decode_route
from polymq.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from polymq.remoting.frames import Command
from polymq.remoting.headers import write_fields
from polymq.remoting.name_fields import BrokerFields, RegisterFields
from polymq.remoting.registration import (
    DataVersion,
    Registration,
    TopicConfig,
    TopicTable,
    encode_registration,
)


def table(*names: str, counter: int = 1, state: int = 0, perm: int = 6) -> TopicTable:
    """Topics with four queues each."""
    return TopicTable(
        data_version=DataVersion(counter=counter, state_version=state, timestamp=1000),
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, perm=perm)
            for name in names
        },
    )


class Speaker:
    """A name server's logic, a clock that the test moves, and the words to talk to it."""

    def __init__(self, login: Login | None = None, /, **limits: float) -> None:
        self.limits = NameServerLimits(**limits)  # type: ignore[arg-type]
        self.requests = Requests(
            tables=Tables(self.limits),
            key_values=KeyValues(self.limits),
            limits=self.limits,
            login=login,
        )
        self.now = 0.0

    def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        connection: int = 1,
    ) -> Answer:
        """Any request. A change of the configuration is kept at once."""
        command = Command(code=code, opaque=1, fields=fields or {}, body=body)
        answer = self.requests.handle(Asked(command=command, connection=connection, now=self.now))
        if answer.change is not None:
            self.requests.key_values.accept(answer.change)
        return answer

    def register(
        self,
        *topics: str,
        name: str = "broker-a",
        cluster: str = "c",
        address: str = "10.0.0.1:10911",
        broker_id: int = MASTER_ID,
        connection: int = 1,
        counter: int = 1,
        state: int = 0,
        **more: object,
    ) -> Answer:
        """A broker registers, as a real one does: with a checksum."""
        body, crc = encode_registration(
            Registration(topics=table(*topics, counter=counter, state=state))
        )
        header = RegisterFields(
            cluster_name=cluster,
            broker_name=name,
            broker_addr=address,
            broker_id=broker_id,
            body_crc32=crc,
            **more,  # type: ignore[arg-type]
        )
        return self.ask(
            RequestCode.REGISTER_BROKER, write_fields(header), body, connection=connection
        )

    def unregister(
        self, name: str = "broker-a", address: str = "10.0.0.1:10911", broker_id: int = 0
    ) -> Answer:
        """A broker takes its leave."""
        header = BrokerFields(
            cluster_name="c", broker_name=name, broker_addr=address, broker_id=broker_id
        )
        return self.ask(RequestCode.UNREGISTER_BROKER, write_fields(header))

    def route(self, topic: str) -> TopicRoute | None:
        """What a client learns of a topic."""
        answer = self.ask(RequestCode.GET_ROUTE, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer
        return decode_route(answer.body)

    def addresses(self, topic: str) -> dict[str, dict[str, str]]:
        """Broker name -> id -> address, of a topic's route."""
        route = self.route(topic)
        if route is None:
            return {}
        return {data.broker_name: data.broker_addrs for data in route.broker_datas}

    def permissions(self, topic: str) -> list[int]:
        """Of each broker of a topic's route."""
        route = self.route(topic)
        return [] if route is None else [data.perm for data in route.queue_datas]
