"""What a client may leave open, where the answer of a service is waited for in between. (How it is
with a started server is in `interop_tests/mqtt_conformance/v5/test_receive_maximum.py`.)"""

from __future__ import annotations

import pytest

from polymq.core_log.kernels.batch import COLUMNS, FLAGS, IDENTIFIER, Batch
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.receive_quota import ReceiveQuota


def batch_of(qos: int, *packet_ids: int) -> Batch:
    batch = Batch(len(packet_ids))
    batch.count = len(packet_ids)
    for row, packet_id in enumerate(packet_ids):
        batch.rows[row * COLUMNS + FLAGS] = qos << 1
        batch.rows[row * COLUMNS + IDENTIFIER] = packet_id
    return batch


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_read_again_counts_once(qos: int) -> None:
    quota = ReceiveQuota(3)
    batch = batch_of(qos, 7, 8, 9)
    for _ in range(3):
        quota.read(batch, 0, 2)
        quota.not_taken(batch, 0, 2)
    quota.read(batch, 0, 3)
    with pytest.raises(RemoteProtocolError, match="more than 3"):
        quota.read(batch_of(1, 10), 0, 1)


def test_messages_without_an_acknowledgement_do_not_count() -> None:
    quota = ReceiveQuota(1)
    quota.read(batch_of(0, 0, 0, 0), 0, 3)
    quota.read(batch_of(1, 1), 0, 1)


def test_each_answer_closes_what_was_read_before_it() -> None:
    """Answers to other packets stand between them."""
    quota = ReceiveQuota(3)
    quota.read(batch_of(1, 1, 2), 0, 2)
    quota.will_answer()
    quota.will_answer()
    quota.read(batch_of(1, 3), 0, 1)
    quota.will_answer()
    quota.answered()
    quota.answered()
    quota.read(batch_of(1, 4, 5), 0, 2)
    with pytest.raises(RemoteProtocolError):
        quota.read(batch_of(1, 6), 0, 1)
