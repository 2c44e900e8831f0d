"""Producers and consumers for programs in Python.

`threads`, `asyncio` and `trio` have the same two functions for programs of the three kinds,
`open_producer` and `open_consumer`. What these take and return is here:

    from polymq.client import ClientOptions, Message
    from polymq.client.threads import open_producer

    with open_producer("shop", ClientOptions(name_servers="127.0.0.1:9876")) as producer:
        producer.send(Message(topic="orders", body=b"..."))
"""

from polymq.remoting.client_options import ClientOptions
from polymq.remoting.codes import ResponseCode
from polymq.remoting.consumer_settings import Begin, ConsumerSettings, Model
from polymq.remoting.errors import (
    CallFailed,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestFailed,
    Unreachable,
)
from polymq.remoting.messages import Message
from polymq.remoting.producer import ProducerSettings, Sent
from polymq.remoting.records import Record
from polymq.remoting.transactions import Decision, Listener

__all__ = [
    "Begin",
    "CallFailed",
    "ClientOptions",
    "ConsumerSettings",
    "Decision",
    "Listener",
    "LocalProtocolError",
    "Message",
    "Model",
    "ProducerSettings",
    "Record",
    "RemoteProtocolError",
    "RemotingError",
    "RequestFailed",
    "ResponseCode",
    "Sent",
    "Unreachable",
]
