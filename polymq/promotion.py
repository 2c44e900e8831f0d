"""Whether a broker may become the master: what would be lost, as far as anybody can be asked.

Theory. A slave cannot see what its master took after they last spoke. So a promotion is free of
doubt only if the connection ended from the master's side while this broker had everything, if no
master answers any more, and if all other slaves that the settings name answer and none has more.
Everything else is said to the operator, who may force the promotion and so give up what is named.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from polymq.core_log.epochs import term_of
from polymq.errors import ExitCode, Failure
from polymq.replication.follower import Answered
from polymq.replication.term_exchange import meet
from polymq.replication_memory import above_term, last_epoch, recall
from polymq.replication_settings import address_of, connecting_tls, identity_of, new_nonce
from polymq.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A slave's copy of its master's log, in a slave's knowledge.

    Attributes:
        epoch: the log's newest; 0: it never followed a master.
        end: how far it is on this disk; None: not known before the log is opened.
        master_flushed: how far the master said that it had the log on its own disk.
        whole: see `Memory`.
        heard_ms: when the master was last heard of; 0: never, or not known.
        following: whether it follows its master now, so that the master takes more.
        led_in_term: of a fenced master: the term that another broker leads in; 0: it is none.
    """

    epoch: int
    end: int | None
    master_flushed: int
    whole: bool
    heard_ms: int
    following: bool = False
    led_in_term: int = 0

    def doubt(self) -> str:
        """What speaks against promoting it, without asking anybody; empty if nothing does."""
        if not self.epoch:
            return "it has never followed a master: its log is empty"
        if self.led_in_term:
            return (
                f"another broker leads in term {self.led_in_term}, and what it accepted is not in "
                "this log"
            )
        end = self.end
        if end is not None and self.master_flushed > end:
            return (
                f"it lacks {self.master_flushed - end:,} bytes that its master had on its disk, "
                f"positions {end:,} to {self.master_flushed:,}, stored at {moment(self.heard_ms)} "
                "or before"
            )
        if self.following:
            return "it follows its master, which still accepts messages"
        if not self.whole:
            return (
                f"it cannot know what its master accepted since {moment(self.heard_ms)}: it was "
                "stopped while it followed, and has not followed since"
            )
        return ""


def moment(time_ms: int) -> str:
    """A time for people."""
    if not time_ms:
        return "an unknown time"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def others_of(settings: Settings) -> list[str]:
    """Where the other brokers of the group listen, as far as the settings name them."""
    chosen = settings.replication
    return sorted({*chosen.peers, chosen.master} - {"", chosen.listen})


async def ask_others(settings: Settings, epoch: int) -> dict[str, Answered]:
    """Meet the other brokers of the group. What each says of itself that answers, by its place.
    Takes `MEETING_SECONDS` at most. Raises Failure if the secret or a certificate cannot be
    read."""
    chosen, tls, addresses = settings.replication, connecting_tls(settings), others_of(settings)
    answers = await asyncio.gather(
        *(
            meet(
                *address_of(address, "replication.peers"),
                identity=identity_of(settings),
                name=chosen.name,
                nonce=new_nonce(),
                epoch=epoch,
                tls=tls,
            )
            for address in addresses
        )
    )
    return {
        address: found
        for address, found in zip(addresses, answers, strict=True)
        if found is not None
    }


async def objections(settings: Settings, copy: Copy) -> list[str]:
    """Sentences that say what speaks against promoting this broker; empty if nothing does. Raises
    Failure."""
    doubt = copy.doubt()
    found = [doubt] if doubt else []
    answers = await ask_others(settings, copy.epoch)
    for address in others_of(settings):
        answer = answers.get(address)
        if answer is None:
            if address != settings.replication.master and copy.epoch:
                found.append(
                    f"the broker {address} (replication.peers) does not answer: it may have more "
                    "than this one"
                )
        elif answer.leads and answer.term >= term_of(copy.epoch):
            found.append(
                f"the master {address} answers, in term {answer.term}: stop it first, or what it "
                "accepts from now on is lost"
            )
        elif not answer.leads and copy.end is not None and copy.epoch:
            if (answer.epoch, answer.end) > (copy.epoch, copy.end):
                found.append(
                    f"the slave {answer.name!r} ({address}) has more: epoch {answer.epoch} up to "
                    f"position {answer.end:,}, and this broker has epoch {copy.epoch} up to "
                    f"{copy.end:,}. Promote that one"
                )
    return found


async def check_promotion(settings: Settings) -> None:
    """Of settings that make a slave the master, before its log is opened. Raises Failure if an
    operator would have to force that."""
    memory = recall(settings)
    if above_term(settings) is None or memory is None or memory.promoted:
        return
    copy = Copy(
        epoch=last_epoch(settings),
        end=None,
        master_flushed=memory.flushed,
        whole=memory.whole,
        heard_ms=memory.heard_ms,
    )
    found = await objections(settings, copy)
    if found:
        raise Failure(
            ExitCode.FAILED,
            "replication.role is master, and this broker was a slave. It is not promoted: "
            + "; ".join(found)
            + ". Set replication.role to slave, or promote it all the same: start it as a slave, "
            "and use `polymq broker promote --force`",
        )
