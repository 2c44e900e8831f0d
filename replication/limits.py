"""Every bound of replication, with its reason."""

from __future__ import annotations

from typing import Final

VERSION: Final = 2
"""Of the frames. A peer of another version is refused in the first of them."""
HELLO_BYTES_MAX: Final = 4 * 1024
"""A frame of somebody who has not proved that he knows the secret: names and a nonce."""
TABLE_BYTES_MAX: Final = 256 * 1024
"""A frame of the handshake behind that: it has a table of epochs."""
EPOCHS_MAX: Final = 2_000
"""Epochs that a peer tells, the newest: so many starts ago both had the same log, or they are not
two copies of one."""
RANGE_BYTES: Final = 256 * 1024
"""One piece of the log: what a socket takes in a few writes."""
RANGE_BYTES_MAX: Final = 144 * 1024 * 1024
"""One piece in a frame: a record may be larger than a usual piece, and goes as one. The largest has
a body of 128 MiB."""
WINDOW_BYTES: Final = 8 * 1024 * 1024
"""Sent and not yet received by the slave: more would only be old when it arrives."""
HEARTBEAT_SECONDS: Final = 1.0
"""How often a side that has nothing to say says so."""
SILENCE_SECONDS: Final = 10.0
"""After that the other side is taken for gone."""
MEETING_SECONDS: Final = 1.0
"""From connecting to another master to its answer: a start waits for it."""
MEETINGS_SECONDS: Final = 2.0
"""Between two meetings: so long may two lead, each of whom can reach the other."""
HANDSHAKE_SECONDS: Final = 5.0
"""From connecting to the first piece of the log."""
UNPROVEN_SECONDS: Final = 2.0
"""From being connected to the proof of the secret: two round trips."""
NEWCOMERS_MAX: Final = 256
"""Connections at a time that have not proven the secret. Slaves and peers need a few; the rest is
there so that a slave proves itself before a flood of others has pushed it out."""
CONNECTIONS_MAX: Final = 2 * NEWCOMERS_MAX
"""Sockets of the listener at a time, those included that are being closed or are within their TLS
handshake."""
QUIET_SECONDS: Final = 2 * HEARTBEAT_SECONDS
"""After that a slave's connection may be replaced by another broker of the same name: its own
process may have ended without the network saying so."""
NONCE_SIZE: Final = 32
NAME_SIZE_MAX: Final = 127
SLAVES_MAX: Final = 8
"""Of one master: each costs its bandwidth once."""
RETRY_SECONDS_FIRST: Final = 0.2
RETRY_SECONDS_MAX: Final = 5.0
"""Between attempts to reach a master."""
