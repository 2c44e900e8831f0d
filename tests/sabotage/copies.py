"""Copies of the tree, in which code is broken without anybody else's seeing it.

A copy has what git knows or would add, and the compiled kernels. One run at a time works in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.sabotage.builds import SUFFIX, rebuilt
from tests.sabotage.plan import ROOT, Sabotage


def make_copy(folder: Path) -> Path:
    """Copy the tree to this place, which must not exist yet."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kernels = [str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/kernels/*.so")]
    for name in [*filter(None, names.split("\0")), *kernels]:
        source = ROOT / name
        if not (source.is_file() or source.is_symlink()) or name.startswith("build/"):
            continue  # deleted and not committed yet; or left by a build
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, folder / name, follow_symlinks=False)
    return folder


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """So many copies, which are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="polymq-sabotage-") as directory:
        yield [make_copy(Path(directory) / f"copy-{number}") for number in range(count)]


@contextmanager
def sabotaged(copy: Path, sabotage: Sabotage | None) -> Iterator[None]:
    """The copy with the mistake in it (None: without any), and its own room for what tests write.
    A compiled kernel is built anew. Raises ValueError if the old lines are not there exactly once,
    CannotBuild."""
    room = copy / ".room"
    room.mkdir()
    try:
        if sabotage is None:
            yield
        else:
            path = copy / sabotage.path
            text = path.read_text(encoding="utf-8")
            write_source(path, sabotage.apply(text))
            try:
                with rebuilt(copy, path) if path.suffix == SUFFIX else nullcontext():
                    yield
            finally:
                write_source(path, text)
    finally:
        shutil.rmtree(room, ignore_errors=True)
        shutil.rmtree(copy / ".hypothesis", ignore_errors=True)


def write_source(path: Path, text: str) -> None:
    """Replace a module, and forget what Python compiled of it: it goes by size and whole seconds,
    which a one-line change may leave as they are."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def environment(copy: Path, *, pure: bool) -> dict[str, str]:
    """What a run in the copy finds around it: servers that tests start are of the copy, too."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "TMPDIR": str(copy / ".room"),
        "HYPOTHESIS_PROFILE": "sabotage",
        "PYTHONHASHSEED": "0",  # as in `make crash`: a seed gives the same states each time
        "POLYMQ_KERNELS": "pure" if pure else "compiled",
        "SABOTAGE_WITNESS": str(copy / ".room/witness.json"),
    }
