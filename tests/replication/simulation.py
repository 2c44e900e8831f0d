"""A master and its slave over a simulated network and simulated disks, with everything that happens
to them drawn from one seed.

Each turn something happens: the master stores messages, a disk syncs, bytes arrive (cut anywhere,
late), the connection breaks, the network is gone for a while, the oldest segments go, at the master
and then at the slave, a process is killed or its machine loses power (also in the middle of a
write), and comes back; now and then the master is lost, the slave is promoted, and the old master
comes back as its slave. And now and then both are lost, a third broker that has been away is
promoted, and both want to follow that one.

What has to hold, whatever happens:

* the slave's log is the master's, byte for byte, up to the slave's end, as long as it follows;
* what was in sync is never lost: it is on both disks when it is said to be, and a promoted slave
  and all later logs begin with it;
* whoever has something that was in sync does not give it up for a master that lacks it; an old
  master gives up all else, without an operator, and what it gives up is kept;
* when faults stop, both logs become the same, and a new message gets in sync.
"""

from __future__ import annotations

import hashlib
from random import Random

from polymq.acknowledging import Acknowledging
from polymq.broker.following.divergence import Divergence, diverged
from polymq.core_log.cut_copy import CutFile, CutHead, keep_cut
from polymq.core_log.cutting import cut_log
from polymq.core_log.errors import StoreError
from polymq.core_log.following import Following
from polymq.core_log.retention import first_after_position
from polymq.core_log.store import Store
from polymq.replication import follower, source
from polymq.replication.common import common_end
from polymq.replication.extent import extent_of
from polymq.replication.frames import Kind, Range
from polymq.replication.source import Identity, Source
from tests.crash.disk import Disk
from tests.crash.losses import NOTHING, Parts
from tests.harness.stores import DIRECTORY, OWN, PRIVATE, TEMPLATE, TINY
from tests.replication.logs import fill, stream

IDENTITY = Identity(cluster="c", group="g", secret=b"sixteen bytes or more")
TURNS = 300
CUTS = "/data/cut"
Content = dict[int, bytes]
"""What a log has: by the place of each file, its bytes."""


def _raise(error: Exception) -> None:
    raise error


class Broker:
    """A process with its disk: a store, in one role or the other, or down."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.disk = Disk()
        self.store: Store | None = None
        self.following: Following | None = None
        self.acknowledging: Acknowledging | None = None
        self.in_sync = 0
        self.copied_end = 0  # where its log ended when it was promoted

    def start(self, role: str, *, above_term: int | None = None) -> None:
        """Open what the disk has."""
        self.store = Store.open(
            DIRECTORY,
            files=self.disk,
            clock_ms=self.simulation.clock,
            settings=TINY,
            stepped=True,
            follows="it follows" if role == "slave" else "",
            above_term=above_term,
        )
        self.following = Following(self.store) if role == "slave" else None
        self.acknowledging = Acknowledging(
            self.disk,
            DIRECTORY,
            self.store,
            leads=role == "master",
            disks=2,
            failed=_raise,
        )

    def die(self, power: str) -> None:
        """The process is gone, and maybe what its machine had not synced."""
        random = self.simulation.random
        if power == "kill":
            self.disk = self.disk.kill()
        elif power == "nothing":
            self.disk = self.disk.crash(NOTHING)
        else:
            self.disk = self.disk.crash(Parts(random, random.random()))
        self.store = self.following = self.acknowledging = None

    def sync(self) -> None:
        """Write what was appended, and let the disk have it."""
        assert self.store is not None
        self.store.log.write()
        self.store.flusher.request()
        self.store.flusher.step()
        self.store.flusher.collect()

    def diverged(self, position: int) -> Divergence:
        """What it has behind that place, in its own judgement."""
        assert self.store is not None
        assert self.acknowledging is not None
        return diverged(
            self.store,
            position,
            self.store.log.written,
            acknowledged=self.acknowledging.value,
            disks={TEMPLATE.topic: 0},
        )

    def cut(self, position: int) -> None:
        """Keep what is behind that place, close in order, cut, open again."""
        store = self.store
        assert store is not None
        end = store.log.written
        lost = [record.raw for record in store.records(position, end)]
        head = CutHead(position=position, end=end, epoch=store.epoch, cut_ms=1)
        stored = CutFile(self.disk, keep_cut(self.disk, DIRECTORY, CUTS, head))
        assert [record.raw for record in stored.records()] == lost
        stored.close()
        store.close()
        cut_log(self.disk, DIRECTORY, position)
        self.start("slave")

    def delete_before(self, position: int) -> bool:
        """Save, and let go of the segments that end before `position`; whether there was one.

        Something before it is left, which no cut takes. (A broker whose log is cut to nothing, and
        begins behind its first byte, does not start: it has no snapshot of the state.)
        """
        store = self.store
        assert store is not None
        ends = [end for _, end in store.segments()[:-1] if end < position]
        if not ends:
            return False
        for number in (OWN, *PRIVATE):
            index = store.find_index(number)
            if index is not None:
                index.trim_before(first_after_position(index, ends[-1]))
        store.prepare_checkpoint()()
        if store.checkpointed < ends[-1]:
            return False
        store.retire(ends[-1])
        store.discard()
        return True

    def content(self, end: int) -> Content:
        """What the log has up to a place."""
        assert self.store is not None
        found: Content = {}
        position = self.store.log.start
        while position < end:
            hot = self.store.log.tail_range(position)
            start, data = hot if hot is not None else self.store.range_of_history(position, 4096)
            assert data, f"{self.name} ends at {position}, not at {end}"
            file = start - start % TINY.segment_bytes
            found[file] = found.get(file, b"") + data[: max(end - start, 0)]
            position = self.store.position_behind(start, data)
        return found


def has_all(content: Content, promised: Content, first: int) -> bool:
    """Whether what was promised is there, as far back as the log reaches: to `first`."""
    return all(
        content.get(file, b"").startswith(data) for file, data in promised.items() if file >= first
    )


class Link:
    """A connection: two cores and what is on its way between them."""

    def __init__(self, master: Broker, slave: Broker, nonce: int) -> None:
        assert master.store is not None
        assert slave.store is not None
        store = master.store
        self.source = Source(
            identity=IDENTITY,
            nonce=f"{nonce:x}",
            extent=lambda: extent_of(store),
            admit=lambda *_: "",
            segment_bytes=TINY.segment_bytes,
        )
        self.follower = follower.Follower(
            identity=IDENTITY,
            name="slave",
            nonce=f"{nonce + 1:x}",
            extent=extent_of(slave.store),
            segment_bytes=TINY.segment_bytes,
        )
        self.to_master = bytearray()
        self.to_slave = bytearray()


class Simulation:
    """One run. Same seed, same trace."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trace = hashlib.sha256()
        self.now = 0
        self.nonce = 0
        self.master = Broker(self, "a")
        self.slave = Broker(self, "b")
        self.link: Link | None = None
        self.unreachable = 0  # turns until the network is back
        self.promised: Content = {}
        self.spare: Disk | None = None  # of a third broker, which was a slave and is down since
        self.released = 0, 0  # what the slave was told: where the log begins, what was flushed
        self.counts: dict[str, int] = {}
        self.master.start("master")
        self.slave.start("slave")

    def clock(self) -> int:
        """A clock that never stands still."""
        self.now += 1
        return self.now

    def run(self, turns: int = TURNS) -> None:
        """Everything that happens, then a time without faults."""
        for _ in range(turns):
            self.turn()
        self.settle()

    def note(self, what: str, *positions: int) -> None:
        """For the trace."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.trace.update(f"{self.now} {what} {positions}\n".encode())

    def turn(self) -> None:
        """One thing happens."""
        random = self.random
        choices = [self.publish, self.master_syncs, self.slave_syncs, self.connect, self.ship]
        choices += [self.deliver] * 6
        if random.random() < 0.06:
            choices = [self.drop, self.part, self.kill_master, self.kill_slave, self.fail_over]
        if random.random() < 0.05:
            choices = [self.master_deletes, self.slave_deletes]
        if random.random() < 0.04:
            choices = [self.leave_spare] * 4 + [self.promote_spare]  # so that much comes between
        random.choice(choices)()
        self.check()

    # --- what happens ---------------------------------------------------------------------------

    def publish(self) -> None:
        if self.master.store is not None:
            fill(self.master.store, self.random, 1)
            self.note("publish", self.master.store.log.appended)

    def master_syncs(self) -> None:
        if self.master.store is not None:
            self.master.sync()
            self.note("master syncs", self.master.store.log.flushed)
            self.take_note()

    def slave_syncs(self) -> None:
        if self.slave.store is not None:
            self.slave.sync()
            self.note("slave syncs", self.slave.store.log.flushed)
            self.ack()

    def connect(self) -> None:
        if self.link is None and not self.unreachable and self.both_up():
            self.nonce += 2
            self.link = Link(self.master, self.slave, self.nonce)
            self.note("connect")
        self.unreachable = max(0, self.unreachable - 1)

    def ship(self) -> None:
        """The master sends a piece of what it has written."""
        link, store = self.link, self.master.store
        if link is None or store is None or not link.source.room:
            return
        sent = link.source.sent
        hot = store.log.tail_range(sent)
        if hot is None or (self.random.random() < 0.3 and sent < store.log.written):
            hot = store.range_of_history(sent, self.random.choice((1, 400, 9000)))
        start, data = hot
        points = store.log.flushed, min(store.log.flushed, link.source.flushed)
        behind = store.position_behind(start, data)
        link.source.send(
            start, data, behind, epoch=store.epoch, points=points, log_start=store.log.start
        )
        self.note("ship", start, len(data))

    def deliver(self) -> None:
        """Some bytes arrive, in either direction."""
        link = self.link
        if link is None:
            return
        link.to_slave += link.source.outgoing()
        link.to_master += link.follower.outgoing()
        size = self.random.choice((1, 10, 100, 5000))
        if self.random.random() < 0.5:
            data = bytes(link.to_master[:size])
            del link.to_master[:size]
            self.at_master(link, data)
        else:
            data = bytes(link.to_slave[:size])
            del link.to_slave[:size]
            self.at_slave(link, data)

    def at_master(self, link: Link, data: bytes) -> None:
        for event in link.source.receive(data):
            self.note(f"master {type(event).__name__}")
            assert not isinstance(event, source.Rejected), event.text
            if isinstance(event, source.Acked):
                self.take_note()

    def at_slave(self, link: Link, data: bytes) -> None:
        for event in link.follower.receive(data):
            following = self.slave.following
            assert following is not None
            self.note(f"slave {type(event).__name__}")
            if isinstance(event, follower.Cut):
                found = self.slave.diverged(event.position)
                if event.position < self.slave.copied_end:
                    # It was promoted with what it had received there, and lost its lead before its
                    # slave had that, too. An operator has to say so, and knows that it is right.
                    self.note("forced" if found.promised else "free to cut")
                else:
                    assert not found.promised, "an operator is asked for what nobody was promised"
                self.slave.cut(event.position)
                self.link = None
                return
            assert not isinstance(event, follower.Refused), event.text
            if isinstance(event, follower.Following):
                assert self.slave.acknowledging is not None
                self.slave.acknowledging.follow()
            if isinstance(event, Range):
                self.slave.in_sync = max(self.slave.in_sync, event.in_sync)
                if event.log_start > self.released[0]:
                    self.released = event.log_start, event.flushed
                if event.data:
                    assert event.position == following.wanted
                    following.take(event.data)
        self.ack()

    def ack(self) -> None:
        """The slave says what it has; the master's last word on what is in sync is remembered."""
        link, following = self.link, self.slave.following
        if link is not None and following is not None:
            assert self.slave.store is not None
            link.follower.ack(self.slave.store.log.flushed, following.wanted)

    def take_note(self) -> None:
        """What is in sync is promised."""
        store = self.master.store
        if self.link is None or store is None:
            return
        in_sync = min(store.log.flushed, self.link.source.flushed)
        if in_sync > self.master.in_sync:
            assert self.master.acknowledging is not None
            self.master.acknowledging._write(in_sync)  # what its thread does
            self.master.in_sync = in_sync
            content = self.master.content(in_sync)
            first = min(content)
            for file, data in content.items():
                known = self.promised.get(file, b"")
                assert data.startswith(known) or known.startswith(data)
                self.promised[file] = max(known, data, key=len)
            assert all(file in content or file < first for file in self.promised)

    def master_deletes(self) -> None:
        """Nobody wants what is oldest. What a slave lacks stays here, or it would need a copy of
        all of it."""
        store = self.master.store
        if store is None or self.slave.store is None:
            return
        if store.segments()[0][1] > min(self.master.in_sync, store.log.flushed):
            return
        store.restate_epochs()
        self.master.sync()
        if self.master.delete_before(min(self.master.in_sync, store.log.flushed)):
            self.note("master deletes", store.log.start)

    def slave_deletes(self) -> None:
        """What the master has deleted, when what it had then is on this disk, too, and in sync."""
        store = self.slave.store
        start, flushed = self.released
        if store is None or min(store.log.flushed, self.slave.in_sync) < flushed:
            return
        if self.slave.delete_before(start):
            self.note("slave deletes", store.log.start)

    def drop(self) -> None:
        if self.link is not None:
            self.note("drop")
            self.link = None
            if self.slave.following is not None:
                self.slave.following.forget()

    def part(self) -> None:
        self.drop()
        self.unreachable = 5
        self.note("part")

    def kill_master(self) -> None:
        self.kill(self.master, "master")

    def kill_slave(self) -> None:
        self.kill(self.slave, "slave")

    def kill(self, broker: Broker, role: str) -> None:
        """A process dies, maybe with its machine, maybe in the middle of a write."""
        self.drop()
        power = self.random.choice(("kill", "kill", "nothing", "parts"))
        if self.random.random() < 0.5 and broker.store is not None:
            broker.disk.off_at = broker.disk.changes_count + self.random.randrange(3)
            try:
                if role == "master":
                    fill(broker.store, self.random, 2)
                broker.sync()
            except (OSError, StoreError):
                pass
        broker.die(power)
        self.note(f"{role} dies: {power}")
        broker.start(role)

    def fail_over(self) -> None:
        """The master is lost, the slave is promoted, and the old master comes back as a slave."""
        assert self.slave.store is not None
        if not self.slave.store.epochs:
            return  # it never followed
        self.drop()
        self.master.die(self.random.choice(("kill", "nothing", "parts")))
        if self.random.random() < 0.5:
            self.slave.die("kill")
        else:
            self.slave.store.close()
        if self.random.random() < 0.3:  # somebody starts the old master once more, by mistake
            self.master.start("master")
            assert self.master.store is not None
            fill(self.master.store, self.random, 1)
            self.master.die("kill")
        self.slave.start("master")
        assert self.slave.store is not None
        self.slave.copied_end = self.slave.store.epochs[-1][1]
        self.master.start("slave")
        self.master, self.slave = self.slave, self.master
        self.released = 0, 0
        self.note("fail over")

    def leave_spare(self) -> None:
        """A third broker, which has what the slave has, goes down, and stays so."""
        if self.spare is None and self.slave.store is not None and self.slave.store.epochs:
            self.spare = self.slave.disk.kill()
            self.note("spare")

    def promote_spare(self) -> None:
        """Master and slave are lost, and the third broker is promoted. Both come back and ask it
        to lead them. Then somebody sees that it is the wrong one, and all goes on as before."""
        if self.spare is None:
            return
        self.drop()
        third = Broker(self, "c")
        third.disk, self.spare = self.spare, None
        third.start("master", above_term=0)
        assert third.store is not None
        fill(third.store, self.random, 1)
        third.sync()
        promised_end = max((file + len(data) for file, data in self.promised.items()), default=0)
        for broker, role in ((self.master, "master"), (self.slave, "slave")):
            broker.die(self.random.choice(("kill", "nothing", "parts")))
            broker.start("slave")
            position = self.common(third, broker)
            assert broker.store is not None
            if position is not None and position < broker.store.log.written:
                found = broker.diverged(position)
                lacks = promised_end > position and broker.store.log.written > position
                if role == "slave" or lacks:
                    self.note(f"{role} keeps what it has")
                assert found.promised or not lacks, "what was in sync would be cut without a word"
            broker.store.close()
            broker.start(role)
        self.note("third is promoted")

    def common(self, master: Broker, slave: Broker) -> int | None:
        """Up to where a master that is asked says that both logs are the same; None if it refuses,
        or if the slave may follow as it is."""
        self.nonce += 2
        link = Link(master, slave, self.nonce)
        while data := link.follower.outgoing():
            link.source.receive(data)
            for event in link.follower.receive(link.source.outgoing()):
                if isinstance(event, follower.Cut):
                    return event.position
        return None

    # --- what has to hold -------------------------------------------------------------------------

    def both_up(self) -> bool:
        return self.master.store is not None and self.slave.store is not None

    def check(self) -> None:
        """After each turn."""
        master, slave = self.master.store, self.slave.store
        assert master is not None
        assert slave is not None
        link = self.link
        if link is not None and link.follower.due is Kind.RANGE:
            master.log.write()
            slave.log.write()
            assert slave.log.written <= master.log.written
            end = slave.log.written
            assert has_all(self.slave.content(end), self.master.content(end), slave.log.start)

    def settle(self) -> None:
        """Without faults everything gets to where it should."""
        self.unreachable = 0
        self.drop()
        self.publish()
        assert self.master.store is not None
        end = 0
        for _ in range(20_000):
            self.connect()
            self.ship()
            self.deliver()
            if self.random.random() < 0.05:
                self.master_syncs()
                self.slave_syncs()
                self.master_deletes()
                self.slave_deletes()
            link = self.link
            end = self.master.store.log.appended
            if link is not None and min(self.master.store.log.flushed, link.source.flushed) == end:
                break
        else:
            raise AssertionError(f"it does not settle: {self.counts}")
        assert self.slave.store is not None
        assert self.slave.store.log.flushed == end
        assert common_end(extent_of(self.master.store), extent_of(self.slave.store)) == end
        contents = [broker.content(end) for broker in (self.master, self.slave)]
        first = max(self.master.store.log.start, self.slave.store.log.start)
        contents[0] = {file: data for file, data in contents[0].items() if file >= first}
        assert contents[0] == {file: data for file, data in contents[1].items() if file >= first}
        for broker in (self.master, self.slave):
            assert broker.store is not None
            has = has_all(broker.content(end), self.promised, broker.store.log.start)
            assert has, "something that was in sync is lost"
        assert stream(self.master.store, first) == stream(self.slave.store, first)
        self.note("settled")
