"""What a power cut leaves: each kind decides differently about the same unsynced changes.

    nothing      only what was synced
    everything   all of it
    sectors      any part: sectors of 512 bytes, names, sizes, in any order
    few, most    the same, where little or nearly everything is there
    pages        the same in pages of 4 KiB, as the page cache writes
    names        all bytes, but names and sizes perhaps not
    zeros        sizes and names, but zeros where sectors were not written
    garbage      other places of the log where sectors were not written, as a reused file has them
    trash        noise where sectors were not written

Two more damage what was synced: `flip_bit`, and `swap_sectors` (a write that went astray).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tests.crash.disk import LOG_PART, SECTOR, Disk, File, Loss, apply

PAGE: Final = 4096


class Parts:
    """Any part of the changes.

    Args:
        likely: how likely it is that a change is there.
        unit: bytes that are there or not as one.
        names_likely: the same for names and sizes; as `likely` if not given.
        noise: what stands where a unit is not there; None for what stood there before.
    """

    def __init__(
        self,
        random: Random,
        likely: float,
        *,
        unit: int = SECTOR,
        names_likely: float | None = None,
        noise: Callable[[int], bytes] | None = None,
    ) -> None:
        self._random = random.random
        self._likely = likely
        self._unit = unit
        self._names_likely = likely if names_likely is None else names_likely
        self._noise = noise

    def keeps_name(self) -> bool:
        return self._random() < self._names_likely

    def keeps_size(self) -> bool:
        return self._random() < self._names_likely

    def write(self, left: bytearray, position: int, data: bytes) -> None:
        for low, high in pieces(position, len(data), self._unit):
            if self._random() < self._likely:
                apply(left, low, data[low - position : high - position])
            elif self._noise is not None:
                apply(left, low, self._noise(high - low))


class Whole:
    """All changes or none."""

    def __init__(self, remaining: bool) -> None:
        self._remaining = remaining

    def keeps_name(self) -> bool:
        return self._remaining

    def keeps_size(self) -> bool:
        return self._remaining

    def write(self, left: bytearray, position: int, data: bytes) -> None:
        if self._remaining:
            apply(left, position, data)


NOTHING: Final = Whole(False)
EVERYTHING: Final = Whole(True)


class Subset:
    """The changes whose bit is set in a mask: to go through all subsets of a few.

    Attributes:
        asked: how many changes there were.
    """

    def __init__(self, mask: int) -> None:
        self._mask = mask
        self.asked = 0

    def keeps_name(self) -> bool:
        self.asked += 1
        return bool(self._mask >> (self.asked - 1) & 1)

    keeps_size = keeps_name

    def write(self, left: bytearray, position: int, data: bytes) -> None:
        for low, high in pieces(position, len(data), SECTOR):
            if self.keeps_name():
                apply(left, low, data[low - position : high - position])


def pieces(position: int, size: int, unit: int) -> Iterator[tuple[int, int]]:
    """The parts of [place, place + size) that lie in different units."""
    for start in range(position - position % unit, position + size, unit):
        yield max(start, position), min(start + unit, position + size)


def other_positions(disk: Disk, random: Random) -> Callable[[int], bytes]:
    """Noise that is made of what the log holds elsewhere: sound records in the wrong place."""
    segments = [bytes(file.data) for path, file in disk.files().items() if LOG_PART in path]

    def noise(size: int) -> bytes:
        if not segments:
            return random.randbytes(size)
        data = random.choice(segments)
        start = random.randrange(0, max(len(data) - size, 1), 4)
        return data[start : start + size].ljust(size, b"\0")

    return noise


POWER_CUTS: Final[dict[str, Callable[[Disk, Random], Loss]]] = {
    "nothing": lambda disk, random: NOTHING,
    "everything": lambda disk, random: EVERYTHING,
    "sectors": lambda disk, random: Parts(random, 0.5),
    "few": lambda disk, random: Parts(random, 0.15),
    "most": lambda disk, random: Parts(random, 0.9),
    "pages": lambda disk, random: Parts(random, 0.5, unit=PAGE),
    "names": lambda disk, random: Parts(random, 1.0, names_likely=0.5),
    "zeros": lambda disk, random: Parts(random, 0.4, names_likely=0.9, noise=bytes),
    "garbage": lambda disk, random: Parts(
        random, 0.4, names_likely=0.9, noise=other_positions(disk, random)
    ),
    "trash": lambda disk, random: Parts(random, 0.4, names_likely=0.9, noise=random.randbytes),
}
"""Every kind of power cut: what it leaves of a disk."""


def live_bytes(path: str, file: File) -> int:
    """How many bytes of a file mean something: the log's files are longer than what they hold."""
    return len(file.data.rstrip(b"\0")) if LOG_PART in path else len(file.data)


def flip_bit(disk: Disk, random: Random) -> str:
    """Flip one bit of a file. Returns where."""
    files = [
        (path, size) for path, file in disk.files().items() if (size := live_bytes(path, file))
    ]
    path, size = random.choice(files)
    position, bit = random.randrange(size), random.randrange(8)
    file = disk.files()[path]
    data = bytearray(file.data)
    data[position] ^= 1 << bit
    damage(file, bytes(data))
    return f"bit {bit} of byte {position} of {path} is flipped"


def swap_sectors(disk: Disk, random: Random) -> str:
    """Swap two sectors, of one file or of two. Returns which."""
    sectors = [
        (path, position)
        for path, file in disk.files().items()
        for position in range(0, live_bytes(path, file), SECTOR)
    ]
    (path, position), (other_path, other_position) = random.choice(sectors), random.choice(sectors)
    file, other = disk.files()[path], disk.files()[other_path]
    size = min(len(file.data) - position, len(other.data) - other_position, SECTOR)
    first = bytes(file.data[position : position + size])
    second = bytes(other.data[other_position : other_position + size])
    for changed, at, written in ((file, position, second), (other, other_position, first)):
        data = bytearray(changed.data)
        data[at : at + size] = written
        damage(changed, bytes(data))
    return (
        f"{size} bytes at {position} of {path} and at {other_position} of {other_path} are swapped"
    )


def damage(file: File, data: bytes) -> None:
    """Give a file other bytes, on the disk too: damage, not a write."""
    file.data = data
    file.disk = data
    file.pending.clear()


DAMAGES: Final[dict[str, Callable[[Disk, Random], str]]] = {
    "flip": flip_bit,
    "swap": swap_sectors,
}
"""What damages bytes that were synced."""
