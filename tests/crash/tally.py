"""What was found, and how a finding is told."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

from tests.crash.disk import Disk


@dataclass(slots=True)
class Tally:
    """What was found. Adds up over seeds.

    Attributes:
        states: checked states by kind.
        contained: checked states by what of the engine's subjects they contained.
        outcomes: what became of damaged bytes.
        recoveries: of all states, and those before power was cut again.
        deeper: how often power was cut again.
        images: a digest of each different disk.
        faults: workloads that met a failing or a full disk.
        failures: broken promises, in words.
    """

    states: Counter[str] = field(default_factory=Counter)
    contained: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    recoveries: int = 0
    deeper: int = 0
    images: set[bytes] = field(default_factory=set)
    faults: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another found."""
        self.states += other.states
        self.contained += other.contained
        self.outcomes += other.outcomes
        self.recoveries += other.recoveries
        self.deeper += other.deeper
        self.images |= other.images
        self.faults += other.faults
        self.failures += other.failures

    def note(self, disk: Disk) -> None:
        """Count different disks."""
        digest = blake2b(digest_size=8)
        for path, file in disk.files().items():
            digest.update(path.encode())
            digest.update(file.data)
        self.images.add(digest.digest())


@contextmanager
def repeatable(
    tally: Tally, seed: int, number: int, reported: list[str], *, alone: bool, subject: str = ""
) -> Iterator[None]:
    """Whatever a check raises is a failure, with the command that repeats it.

    Args:
        reported: what is known of the state; may grow meanwhile.
        alone: the state is repeated: say where the error came from.
        subject: what the seed's workloads had to be about.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        lines = traceback.format_exception(error)
        about = f"--with '{subject}' " if subject else ""
        text = "".join(lines) if alone else f"{type(error).__name__}: {error}"
        tally.failures.append(
            f"seed {seed}, state {number} ({', '.join(reported)}): {text}\n"
            f'    make crash CRASH="{about}--seed {seed} --state {number}"'
        )
