"""RocketMQ's remoting protocol, without the network.

This package turns bytes into commands and commands into bytes, for both sides of a connection. It
refuses to do networking: `connection.Connection` is fed with what a socket gave and returns what a
socket shall send. `client` is a client in the same spirit: one pure core that says which call to
make next. `driver_blocking` makes it; a driver for another way of waiting stands beside it.
"""
