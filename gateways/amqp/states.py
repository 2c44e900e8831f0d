"""The machines of a connection and of its channels, as tables, and the errors of what they lack.

Rules of this file:

1. All legal behaviour is here: what may come and what may be sent, in which state. A pair that is
   not in a table is a protocol error; `fault_of_channel` and `fault_of_connection` say which.
2. This file knows no bytes. `protocol.py` walks through the tables.

The connection goes from the protocol header through start, tune and open to OPEN (AMQP 2.2.4), and
out through CLOSING (we asked) or CLOSE_RECEIVED (the client did). Each channel has a machine of its
own, in which a content is a walk from OPEN through HEADER and BODY back to OPEN: so a method in the
middle of a content, or a body without a header, has no entry.
"""

from __future__ import annotations

import enum
from typing import Final

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.spec import METHODS, Method


class State(enum.Enum):
    """States of the connection."""

    WAIT_HEADER = enum.auto()
    STARTING = enum.auto()  # connection.start is ours to send
    WAIT_START_OK = enum.auto()
    AUTHENTICATING = enum.auto()  # tune is ours to send
    WAIT_TUNE_OK = enum.auto()
    WAIT_OPEN = enum.auto()
    OPENING = enum.auto()  # open-ok is ours to send
    OPEN = enum.auto()
    CLOSING = enum.auto()  # we sent close; only its answer counts
    CLOSE_RECEIVED = enum.auto()  # close-ok is ours to send
    CLOSED = enum.auto()
    DEAF = enum.auto()  # framing is lost: nothing that comes can be understood


class ChannelState(enum.Enum):
    """States of a channel."""

    CLOSED = enum.auto()  # never opened, or closed again
    OPENING = enum.auto()  # open-ok is ours to send
    OPEN = enum.auto()
    HEADER = enum.auto()  # a publish came, its header has to follow
    BODY = enum.auto()
    CLOSING = enum.auto()  # we sent close; only its answer counts
    CLOSE_RECEIVED = enum.auto()  # close-ok is ours to send


class Content(enum.Enum):
    """Frames of a content as the channel's machine sees them."""

    HEADER = enum.auto()
    HEADER_OF_NOTHING = enum.auto()  # body size 0: the content is complete
    BODY = enum.auto()
    LAST_BODY = enum.auto()
    TRAFFIC = enum.auto()  # whole publishes and settlements from the kernel


# What may come on channel 0.
RECEIVED: Final[dict[tuple[State, type[Method]], State]] = {
    (State.WAIT_START_OK, spec.ConnectionStartOk): State.AUTHENTICATING,
    (State.WAIT_TUNE_OK, spec.ConnectionTuneOk): State.WAIT_OPEN,
    (State.WAIT_OPEN, spec.ConnectionOpen): State.OPENING,
    (State.OPEN, spec.ConnectionUpdateSecret): State.OPEN,
    (State.OPEN, spec.ConnectionClose): State.CLOSE_RECEIVED,
    (State.WAIT_OPEN, spec.ConnectionClose): State.CLOSE_RECEIVED,
    (State.WAIT_TUNE_OK, spec.ConnectionClose): State.CLOSE_RECEIVED,
    # Closes that crossed: theirs is answered, ours is still owed an answer (AMQP 4.10).
    (State.CLOSING, spec.ConnectionClose): State.CLOSING,
    (State.CLOSING, spec.ConnectionCloseOk): State.CLOSED,
}

# What we may send on channel 0.
SENT: Final[dict[tuple[State, type[Method]], State]] = {
    (State.STARTING, spec.ConnectionStart): State.WAIT_START_OK,
    (State.AUTHENTICATING, spec.ConnectionTune): State.WAIT_TUNE_OK,
    (State.OPENING, spec.ConnectionOpenOk): State.OPEN,
    (State.OPEN, spec.ConnectionUpdateSecretOk): State.OPEN,
    (State.OPEN, spec.ConnectionBlocked): State.OPEN,
    (State.OPEN, spec.ConnectionUnblocked): State.OPEN,
    (State.CLOSE_RECEIVED, spec.ConnectionCloseOk): State.CLOSED,
    (State.CLOSING, spec.ConnectionCloseOk): State.CLOSING,
    # Whatever went wrong, once the versions are agreed on it can be said.
    **{
        (state, spec.ConnectionClose): State.CLOSING
        for state in State
        if state
        not in (
            State.WAIT_HEADER,
            State.STARTING,
            State.CLOSING,
            State.CLOSE_RECEIVED,
            State.CLOSED,
            State.DEAF,
        )
    },
    (State.DEAF, spec.ConnectionClose): State.DEAF,
}

_OWN_CHANNEL_METHODS: Final = (spec.ChannelOpen, spec.ChannelClose, spec.ChannelCloseOk)

# What may come on a channel: methods by their class, contents by their kind.
CHANNEL_RECEIVED: Final[dict[tuple[ChannelState, type[Method] | Content], ChannelState]] = {
    (ChannelState.CLOSED, spec.ChannelOpen): ChannelState.OPENING,
    **{
        (ChannelState.OPEN, method): ChannelState.OPEN
        for method in METHODS.values()
        if method.FROM_CLIENT and method.CLASS_ID != 10 and method not in _OWN_CHANNEL_METHODS
    },
    (ChannelState.OPEN, Content.TRAFFIC): ChannelState.OPEN,
    (ChannelState.OPEN, spec.BasicPublish): ChannelState.HEADER,
    (ChannelState.HEADER, Content.HEADER): ChannelState.BODY,
    (ChannelState.HEADER, Content.HEADER_OF_NOTHING): ChannelState.OPEN,
    (ChannelState.BODY, Content.BODY): ChannelState.BODY,
    (ChannelState.BODY, Content.LAST_BODY): ChannelState.OPEN,
    (ChannelState.OPEN, spec.ChannelClose): ChannelState.CLOSE_RECEIVED,
    # A client may give up in the middle of a content.
    (ChannelState.HEADER, spec.ChannelClose): ChannelState.CLOSE_RECEIVED,
    (ChannelState.BODY, spec.ChannelClose): ChannelState.CLOSE_RECEIVED,
    # Closes that crossed: theirs is answered, ours is still owed an answer.
    (ChannelState.CLOSING, spec.ChannelClose): ChannelState.CLOSING,
    (ChannelState.CLOSING, spec.ChannelCloseOk): ChannelState.CLOSED,
}

_ANSWERS: Final[tuple[type[Method], ...]] = (
    spec.ChannelFlowOk,
    *(
        method
        for method in METHODS.values()
        if method.FROM_SERVER and method.CLASS_ID not in (10, 20)
    ),
)

# What we may send on a channel.
CHANNEL_SENT: Final[dict[tuple[ChannelState, type[Method]], ChannelState]] = {
    (ChannelState.OPENING, spec.ChannelOpenOk): ChannelState.OPEN,
    # Answers and deliveries may go out while a content comes in: the directions are apart.
    **{
        (state, method): state
        for state in (ChannelState.OPEN, ChannelState.HEADER, ChannelState.BODY)
        for method in _ANSWERS
    },
    **{
        (state, spec.ChannelClose): ChannelState.CLOSING
        for state in (ChannelState.OPEN, ChannelState.HEADER, ChannelState.BODY)
    },
    (ChannelState.CLOSING, spec.ChannelCloseOk): ChannelState.CLOSING,
    (ChannelState.CLOSE_RECEIVED, spec.ChannelCloseOk): ChannelState.CLOSED,
}

TRAFFIC_STATE: Final = ChannelState.OPEN
"""The one state that takes whole publishes and acks, beside the table for speed."""
assert [state for state, seen in CHANNEL_RECEIVED if seen is Content.TRAFFIC] == [TRAFFIC_STATE]

DROPPED_STATES: Final = (ChannelState.CLOSING, ChannelState.CLOSE_RECEIVED)
"""What comes for such a channel and is not in the table is dropped (AMQP 1.5.2.5)."""

LATE: Final = (spec.BasicAck, spec.BasicNack, spec.BasicReject, spec.ChannelCloseOk)
"""What may be under way while a channel closes: dropped if it comes afterwards."""


AGAIN: Final[dict[type[Method], ChannelState]] = {
    spec.ChannelClose: ChannelState.CLOSE_RECEIVED,
}
"""What may come for a channel that was open once and is closed: a client that closes twice before
it reads gets two answers."""


def fault_of_channel(
    state: ChannelState, seen: type[Method] | Content, channel: int
) -> RemoteProtocolError:
    """The error of a pair that is not in CHANNEL_RECEIVED."""
    if isinstance(seen, Content):
        return RemoteProtocolError(
            ReplyCode.UNEXPECTED_FRAME,
            f"a content {seen.name.lower()} frame on channel {channel} without its publish"
            if state not in (ChannelState.BODY, ChannelState.HEADER)
            else f"a content {seen.name.lower()} frame on channel {channel}, which waits for "
            f"a {state.name.lower()} frame",
        )
    code = ReplyCode.CHANNEL_ERROR
    if not seen.FROM_CLIENT:
        code = ReplyCode.COMMAND_INVALID
        text = f"{seen.NAME} is the server's to send"
    elif state in (ChannelState.CLOSED, ChannelState.OPENING):
        text = f"expected 'channel.open', got {seen.NAME} on channel {channel}"
    elif state is ChannelState.OPEN and seen is spec.ChannelOpen:
        text = f"second 'channel.open' on channel {channel}"
    elif state is ChannelState.OPEN:
        code = ReplyCode.COMMAND_INVALID
        text = f"{seen.NAME} answers nothing on channel {channel}"
    else:
        code = ReplyCode.UNEXPECTED_FRAME
        text = f"{seen.NAME} on channel {channel} in the middle of a content"
    return RemoteProtocolError(code, text, class_id=seen.CLASS_ID, method_id=seen.METHOD_ID)


def fault_of_connection(state: State, kind: type[Method], channel: int) -> RemoteProtocolError:
    """The error of a pair that is not in RECEIVED."""
    if channel == 0 and kind.CLASS_ID != spec.ConnectionStart.CLASS_ID:
        code = ReplyCode.CHANNEL_ERROR
        text = f"{kind.NAME} on channel 0"
    elif channel and kind.CLASS_ID == spec.ConnectionStart.CLASS_ID:
        code = ReplyCode.COMMAND_INVALID
        text = f"{kind.NAME} on channel {channel}: it belongs on channel 0"
    else:
        code = ReplyCode.COMMAND_INVALID
        text = f"{kind.NAME} may not come now ({state.name.lower().replace('_', ' ')})"
    return RemoteProtocolError(code, text, class_id=kind.CLASS_ID, method_id=kind.METHOD_ID)
