"""RocketMQ's remoting protocol, without the network.

This package turns bytes into commands and commands into bytes, for both sides of a connection. It
refuses to do networking: `connection.Connection` is fed with what a socket gave and returns what a
socket shall send. `client`, `producer` and `consumer` are clients in the same spirit: pure cores
that say which call to make next. `driver_blocking`, `driver_asyncio` and `driver_trio` make it.
"""
