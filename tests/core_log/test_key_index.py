"""Finding messages by key: every flushed message that has the key, and no other, whatever happened
to the index in between."""

from __future__ import annotations

import base64
import errno
import struct
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.core_log.files import Files
from polymq.core_log.kernels import keys, writing
from polymq.core_log.kernels.batch import EXTRA_BASE64, EXTRA_VERBATIM, Batch
from polymq.core_log.record import Record, RecordTemplate, encode_properties
from polymq.core_log.settings import StoreSettings
from polymq.kernel_forms import plain_form
from tests.harness.files import EVERYTHING, NOTHING, Chooser, FailingFiles, MemoryFiles
from tests.harness.forms import compiled_form
from tests.harness.stores import DIRECTORY, TINY, Bench

INDEX = f"{DIRECTORY}/index"
SMALL = replace(TINY, segment_bytes=1 << 16, key_slots=7, key_file_entries=12)
FOREVER = 1 << 62

plain_keys, fast_keys = plain_form(keys.__name__), compiled_form(keys.__name__)
both_forms = pytest.mark.skipif(fast_keys is None, reason="the kernels were not compiled")


class KeyBench(Bench):
    """A store whose messages have keys, and the memory of which message has which.

    Attributes:
        known: (topic, key, position, store ms) of each.
    """

    def __init__(self, files: Files, shape: StoreSettings = SMALL) -> None:
        super().__init__(files, settings=shape)
        self.known: list[tuple[bytes, bytes, int, int]] = []

    def put(
        self, keys: Sequence[str], *, topic: bytes = b"sensors", unique: str = "", amqp: str = ""
    ) -> int:
        """One message with these keys; returns its position."""
        properties = {"KEYS": " ".join(keys)} if keys else {}
        if unique:
            properties["UNIQ_KEY"] = unique
        if amqp:
            properties["PMQ_AMQP"] = base64.b64encode(amqp_properties(amqp)).decode()
        template = RecordTemplate(topic, 0, encode_properties({"TAGS": "t", **properties}))
        number = len(self.known)
        span = self.store.log.append_record(
            template,
            b"body %d" % number,
            targets=[(1, self.own.end_offset)],
            born_ms=self.now_ms,
            store_ms=self.now_ms,
        )
        self.own.append(span.entries)
        for key in [*keys, *filter(None, (unique, amqp))]:
            self.known.append((topic, key.encode(), span.position, self.now_ms))
        return span.position

    def find(
        self,
        key: str,
        *,
        topic: bytes = b"sensors",
        count_max: int = 1000,
        begin_ms: int = 0,
        end_ms: int = FOREVER,
    ) -> list[int]:
        """The positions that a search finds."""
        found = self.store.keys.find(
            topic,
            key.encode(),
            count_max=count_max,
            bytes_max=1 << 20,
            begin_ms=begin_ms,
            end_ms=end_ms,
            end=self.store.log.flushed,
            accept=lambda record: isinstance(record, Record),
        )
        return [record.position for record in found]

    def expected(
        self, key: str, *, topic: bytes = b"sensors", begin_ms: int = 0, end_ms: int = FOREVER
    ) -> list[int]:
        """The same, by looking at everything."""
        wanted = {
            position
            for its_topic, its_key, position, ms in self.known
            if (its_topic, its_key) == (topic, key.encode())
            and begin_ms <= ms <= end_ms
            and position < self.store.log.flushed
        }
        return sorted(wanted, reverse=True)

    def check(self) -> None:
        """Every key of every topic."""
        for topic, key, _, _ in set(self.known):
            text = key.decode()
            assert self.find(text, topic=topic) == self.expected(text, topic=topic)
        assert self.find("no such key") == []


def amqp_properties(message_id: str) -> bytes:
    """AMQP's properties as a client sends them: content type, headers, delivery mode, message
    id."""
    table = b"\x01xI" + bytes(4)
    return (
        struct.pack(">H", 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7)
        + b"\x0atext/plain"
        + struct.pack(">I", len(table))
        + table
        + b"\x02"
        + bytes((len(message_id),))
        + message_id.encode()
    )


def entries_of(bench: KeyBench) -> int:
    """How many entries the index's files hold."""
    keys = bench.store.keys
    states = [*keys._full, *([] if keys._writer is None else [keys._writer.state])]
    return sum(state.number - 1 for state in states)


# --- finding ----------------------------------------------------------------------------------


def test_a_message_is_found_by_each_of_its_keys() -> None:
    """KEYS separated by spaces, UNIQ_KEY, and the message id that an AMQP client sent; in its own
    topic only."""
    bench = KeyBench(MemoryFiles())
    first = bench.put(["order-1", "customer-9"], unique="AC1100")
    second = bench.put(["order-2", "customer-9"], topic=b"orders")
    third = bench.put([], amqp="0815")
    fourth = bench.put(["ä-key", "customer-9"])
    bench.flush()
    assert bench.find("order-1") == [first]
    assert bench.find("AC1100") == [first]
    assert bench.find("customer-9") == [fourth, first]
    assert bench.find("customer-9", topic=b"orders") == [second]
    assert bench.find("0815") == [third]
    assert bench.find("ä-key") == [fourth]
    assert bench.find("order") == bench.find("order-1 customer-9") == bench.find("") == []
    assert bench.find("customer-9", count_max=1) == [fourth]
    bench.check()


def test_what_is_not_flushed_is_not_found() -> None:
    bench = KeyBench(MemoryFiles())
    first = bench.put(["k"])
    bench.flush()
    second = bench.put(["k"])
    bench.store.log.write()
    assert bench.find("k") == [first]
    assert entries_of(bench) == 1
    bench.flush()
    assert bench.find("k") == [second, first]
    assert entries_of(bench) == 2


def test_a_message_that_has_a_key_twice_is_found_once() -> None:
    bench = KeyBench(MemoryFiles())
    position = bench.put(["k", "k"], unique="k")
    bench.flush()
    assert bench.find("k") == [position]


def test_keys_are_found_by_time() -> None:
    bench = KeyBench(MemoryFiles())
    start = bench.now_ms
    for step in range(30):
        bench.now_ms = start + 700 * step
        bench.put(["k", f"k{step % 3}"])
    bench.flush()
    for begin, end in ((0, 0), (0, 700), (701, 5000), (5600, 5600), (20_000, 30_000), (0, 1 << 40)):
        for key in ("k", "k1"):
            assert bench.find(key, begin_ms=start + begin, end_ms=start + end) == bench.expected(
                key, begin_ms=start + begin, end_ms=start + end
            )


def test_keys_whose_hashes_collide_are_told_apart() -> None:
    """`Aa` and `BB` have the same hash in Java."""
    bench = KeyBench(MemoryFiles())
    assert keys.key_hash(b"sensors", b"Aa") == keys.key_hash(b"sensors", b"BB")
    first, second = bench.put(["Aa"]), bench.put(["BB"])
    bench.flush()
    assert (bench.find("Aa"), bench.find("BB")) == ([first], [second])


def test_files_are_rocketmqs() -> None:
    """Header, slots and linked entries as RocketMQ lays them out, read here by its rules."""
    files = MemoryFiles()
    bench = KeyBench(files, replace(SMALL, key_file_entries=100))
    start = bench.now_ms
    positions = []
    for step in range(5):
        bench.now_ms = start + 1000 * step
        positions.append(bench.put(["k", f"x{step}"]))
    bench.flush()
    bench.store.keys.catch_up(bench.store.log.flushed)
    (name,) = [name for name in files.list(INDEX) if name != "known"]
    assert name == "20231114221324000"  # when the file was begun
    data = files.read(f"{INDEX}/{name}")
    header = struct.unpack_from(">qqqqII", data)
    assert header == (start, start + 4000, positions[0], positions[4] + 1, 7, 11)
    hashed = keys.key_hash(b"sensors", b"k")
    (number,) = struct.unpack_from(">I", data, 40 + 4 * (hashed % 7))
    found = []
    while number:
        its_hash, position, seconds, number = struct.unpack_from(
            ">IqiI", data, 40 + 4 * 7 + 20 * number
        )
        if its_hash == hashed:
            found.append((position, seconds))
    assert found == list(reversed([(p, s) for s, p in enumerate(positions)]))


def test_a_stretch_without_keys_is_not_read() -> None:
    """What a broker of devices writes has no keys, and costs the index nothing."""
    files = FailingFiles(MemoryFiles())
    bench = KeyBench(files)
    bench.put(["first"])
    bench.flush()
    bench.store.keys.catch_up(bench.store.log.flushed, bench.store.log.keyed_end)
    for _ in range(50):
        bench.put([])
    bench.flush()
    files.fail("pread", errno.EIO, count=None)
    bench.store.keys.catch_up(bench.store.log.flushed, bench.store.log.keyed_end)
    files.heal()
    for put in ({"keys": ["second"]}, {"keys": [], "unique": "third"}, {"keys": [], "amqp": "4th"}):
        bench.put(**put)
        bench.put([])
        bench.flush()
        bench.store.keys.catch_up(bench.store.log.flushed, bench.store.log.keyed_end)
    bench.check()


@pytest.mark.parametrize(
    ("template", "keyed"),
    [
        ({}, False),
        ({"properties": encode_properties({"KEYS": "k"})}, True),
        ({"extra_kind": EXTRA_BASE64}, True),
        ({"extra_kind": EXTRA_BASE64, "extra_keyed": False}, False),
        ({"properties": encode_properties({"UNIQ_KEY": "k"}), "extra_keyed": False}, True),
    ],
)
def test_a_template_says_whether_its_records_may_have_keys(
    template: dict[str, Any], keyed: bool
) -> None:
    """What a gateway knows of the extra bytes counts for those only."""
    assert (
        RecordTemplate(**{"topic": b"t", "queue_id": 0, "properties": b"", **template}).keyed
        is keyed
    )


# --- whatever happens -------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 6)),
            st.tuples(st.sampled_from(("plain", "flush", "index", "stop", "kill")), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_key_is_found_after_any_history(steps: list[tuple[str, int]]) -> None:
    """Messages, passes of the index, stops and crashes in any order, over several files."""
    files = MemoryFiles()
    bench = KeyBench(files)
    for kind, value in steps:
        if kind == "put":
            bench.now_ms += 300
            bench.put([f"key-{value}", "all"][: 1 + value % 2], unique=f"u{len(bench.known)}")
        elif kind == "plain":
            bench.put([])
        elif kind == "flush":
            bench.flush()
        elif kind == "index":
            bench.store.keys.catch_up(bench.store.log.flushed, bench.store.log.keyed_end)
        else:
            bench.flush()
            known, now = bench.known, bench.now_ms
            if kind == "stop":
                bench.store.close()
            else:
                bench.abandon()
                files = files.after_crash(NOTHING)
            bench = KeyBench(files)
            bench.known, bench.now_ms = known, now
    bench.flush()
    bench.check()
    assert bench.store.keys.remade_count == 0
    bench.abandon()


@pytest.mark.parametrize("seed", range(4))
def test_power_is_cut_while_the_index_is_written(seed: int) -> None:
    """At every operation, with any part of what was unsynced: all is found afterwards."""
    for cut in range(30):
        files = MemoryFiles()
        bench = KeyBench(files)
        for step in range(20):
            bench.put([f"k{step % 4}"])
            if step % 7 == 6:
                bench.flush()
                bench.store.keys.catch_up(bench.store.log.flushed)
        bench.flush()
        files.cut_power_after(cut)
        try:
            bench.store.keys.catch_up(bench.store.log.flushed)
        except OSError:
            pass  # the machine is off
        bench.abandon()
        likely = (0.0, 0.5, 0.9, 1.1)[seed]
        found = KeyBench(files.after_crash(Chooser(Random(cut), likely=likely, trash=0.1)))
        found.known = bench.known
        found.check()
        found.abandon()


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_found_and_the_file_made_again(seed: int) -> None:
    """In slots, entries or sums, of full files and of the one that is being filled."""
    random = Random(seed)
    files = MemoryFiles()
    bench = KeyBench(files)
    for step in range(30):
        bench.put([f"k{step % 4}", "all"])
    bench.flush()
    bench.store.keys.catch_up(bench.store.log.flushed)
    bench.store.close()
    names = [name for name in files.list(INDEX) if name != "known"]
    assert len(names) >= 5
    remade = 0
    for _ in range(25):
        copy = files.after_crash(EVERYTHING)
        path = f"{INDEX}/{random.choice([*names, 'known'])}"
        data = copy.read(path)
        offset, bit = random.randrange(len(data)), random.randrange(8)
        copy.overwrite(path, data[:offset] + bytes((data[offset] ^ 1 << bit,)) + data[offset + 1 :])
        found = KeyBench(copy)
        found.known = bench.known
        found.check()
        remade += found.store.keys.remade_count
        found.store.close()
    assert remade > 10


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zeros"])
def test_a_file_that_is_not_whole_is_made_again(damage: str) -> None:
    files = MemoryFiles()
    bench = KeyBench(files)
    for step in range(30):
        bench.put([f"k{step % 4}"])
    bench.flush()
    bench.store.keys.catch_up(bench.store.log.flushed)
    bench.store.close()
    for name in [name for name in files.list(INDEX) if name != "known"]:
        copy = files.after_crash(EVERYTHING)
        path = f"{INDEX}/{name}"
        data = copy.read(path)
        match damage:
            case "missing":
                copy.unlink(path)
            case "empty":
                copy.overwrite(path, b"")
            case "short":
                copy.overwrite(path, data[:-20])
            case _:
                copy.overwrite(path, bytes(len(data)))
        found = KeyBench(copy)
        found.known = bench.known
        found.check()
        assert found.store.keys.remade_count == 1
        found.store.close()


def test_an_index_that_was_removed_is_made_again() -> None:
    files = MemoryFiles()
    bench = KeyBench(files)
    for step in range(30):
        bench.put([f"k{step % 4}"])
    bench.flush()
    bench.check()
    bench.store.close()
    for name in files.list(INDEX):
        files.unlink(f"{INDEX}/{name}")
    files.open(f"{INDEX}/notes.txt", create=True)
    found = KeyBench(files)
    found.known = bench.known
    found.check()
    assert "notes.txt" in files.list(INDEX)


def test_a_full_disk_is_no_failure_of_the_log() -> None:
    """What could not be written is tried again; publishing goes on."""
    files = FailingFiles(MemoryFiles())
    bench = KeyBench(files)
    for turn in range(8):
        for step in range(5):
            bench.put([f"k{step}"])
        bench.flush()
        files.fail("pwritev", errno.ENOSPC, after=turn % 4)
        try:
            bench.store.keys.catch_up(bench.store.log.flushed)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
        files.heal()
    bench.check()
    bench.put(["after"])
    bench.flush()
    bench.check()
    assert entries_of(bench) == len(bench.known)


def test_messages_without_keys_make_no_files() -> None:
    files = MemoryFiles()
    bench = KeyBench(files)
    for _ in range(30):
        bench.put([])
        bench.flush()
        bench.store.keys.catch_up(bench.store.log.flushed)
    assert files.list(INDEX) == []
    assert bench.find("k") == []


# --- both forms of the kernels ----------------------------------------------------------------

KEY = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=9)
PAIRS = st.lists(
    st.tuples(
        st.sampled_from(("KEYS", "UNIQ_KEY", "PMQ_AMQP", "KEYS2", "X", "TAGS")),
        st.one_of(
            KEY,
            st.lists(KEY).map(" ".join),
            st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode()),
            KEY.map(lambda key: base64.b64encode(amqp_properties(key)).decode()),
            st.text("AZaz09+/=", max_size=8),
        ),
    ),
    max_size=5,
)


@both_forms
@given(st.lists(PAIRS, max_size=4), st.binary(min_size=1, max_size=30))
def test_both_forms_find_the_same_keys(messages: list[list[tuple[str, str]]], topic: bytes) -> None:
    memory = b"".join(record_of(topic, pairs) for pairs in messages)
    expected = plain_keys.find_keys(memory, 0, len(memory))
    assert fast_keys.find_keys(memory, 0, len(memory)) == expected
    for slots_count in (1, 3):
        tables = [bytearray(4 * slots_count) for _ in range(3)]
        entries = plain_keys.link_keys(expected, tables[0], 5, 1_699_999_999_000)
        assert fast_keys.link_keys(expected, tables[1], 5, 1_699_999_999_000) == entries
        fast_keys.fill_slots(entries, tables[2], 5)
        assert tables[0] == tables[1] == tables[2]
        plain_keys.fill_slots(entries, tables[2], 5)
        assert tables[0] == tables[2]


def record_of(topic: bytes, pairs: list[tuple[str, str]]) -> bytes:
    """The bytes of one record with these properties."""
    template = RecordTemplate(topic, 0, encode_properties(pairs))
    batch = Batch(1)
    batch.buffer = b"body"
    batch.add((0, 0), (0, 4))
    memory = bytearray(4096)
    _, end, _ = writing.append_run(
        memory, 0, 4096, 77, template.form, bytes(8), b"", [], 0, batch, 0, 1, 1, 1_700_000_000_000
    )
    return bytes(memory[:end])


@both_forms
@given(st.binary(max_size=30), st.binary(max_size=30))
def test_both_forms_have_one_hash(topic: bytes, key: bytes) -> None:
    expected = plain_keys.key_hash(topic, key)
    assert fast_keys.key_hash(topic, key) == expected
    assert 0 <= expected < 1 << 31


def test_the_lowest_hash_is_zero() -> None:
    """Java's abs() of the lowest integer is negative; RocketMQ takes 0 then."""
    assert writing.java_hash("polygenelubricants") == -(1 << 31)
    topic, _, key = "polygenelubricants".partition("#")
    assert key == ""
    for form in filter(None, (plain_keys, fast_keys)):
        assert form.key_hash(b"a", b"") == abs(writing.java_hash("a#"))
        with pytest.raises(ValueError, match="not a record"):
            form.find_keys(bytes(200), 0, 200)
        with pytest.raises(ValueError, match="not whole rows"):
            form.link_keys(bytes(21), bytearray(4), 1, 0)
        with pytest.raises(ValueError, match="not whole entries"):
            form.fill_slots(bytes(21), bytearray(4), 1)
        with pytest.raises(ValueError, match="not a table of slots"):
            form.link_keys(b"", bytearray(), 1, 0)
    assert topic


def test_a_verbatim_extra_property_holds_keys() -> None:
    """The way of CloudEvents: keys stand in the part that each message has for itself."""
    bench = KeyBench(MemoryFiles())
    template = RecordTemplate(b"sensors", 0, b"", extra_kind=EXTRA_VERBATIM)
    extra = encode_properties({"KEYS": "event-7", "CE_id": "event-7"})
    span = bench.store.log.append_record(
        template, b"x", extra=extra, targets=[(1, 0)], born_ms=1, store_ms=2
    )
    bench.own.append(span.entries)
    bench.flush()
    assert bench.find("event-7") == [span.position]
