"""The source distribution and the wheel: built of this tree, whole, and of nothing else.

A wheel with kernels takes minutes; these tests build what a machine without a compiler gets. What
`make wheel` builds is checked by `packaging/check_installation.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.packaging.product import PROJECT, ROOT, VERSION

pytestmark = pytest.mark.slow(seconds=60)
FOLDERS = ("broker", "core_log", "gateways", "namesrv", "net", "remoting", "replication")
SOURCES = (".py", ".pyx", ".pxd")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this tree that git knows, in a directory of its own: a build writes into it."""
    directory = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    archived = subprocess.run(
        ["tar", "--create", "--null", "--no-recursion", "--files-from=-", "--ignore-failed-read"],
        cwd=ROOT,
        input=listed.stdout,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "--extract"], cwd=directory, input=archived.stdout, check=True)
    return directory


def build(kind: str, source: Path, output: Path) -> Path:
    """`sdist` or `wheel` of a tree, by the build backend that is installed here."""
    program = f"from setuptools import build_meta as b; print(b.build_{kind}({str(output)!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        env={**os.environ, "CC": "/bin/false", "POLYMQ_KERNELS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return output / ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    directory = tmp_path_factory.mktemp("source")
    with tarfile.open(build("sdist", tree, directory)) as archive:
        archive.extractall(directory, filter="data")
    return directory / f"polymq-{VERSION}"


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built of the source distribution, and of nothing beside it."""
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


def sources_of(tree: Path) -> set[str]:
    """The modules and kernels of the package, as paths in it."""
    folders = {name: tree / name for name in (*FOLDERS, "spark_sink")} | {"": tree / "polymq"}
    return {
        str(Path("polymq", name, path.relative_to(folder)))
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.suffix in SOURCES and not path.is_symlink()
    }


def test_the_source_distribution_has_every_module_and_kernel(tree: Path, source: Path) -> None:
    found = {str(path.relative_to(source)) for path in (source / "polymq").rglob("*")}
    assert sources_of(tree) - found == set()
    assert not [path for path in source.rglob("*") if path.is_symlink()]


def test_the_source_distribution_has_what_packages_are_built_of(tree: Path, source: Path) -> None:
    """And neither tests, which need the tree, nor anything that was built."""
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "setup.py", "polymq.example.toml"):
        assert (source / name).is_file()
    for folder in ("docs", "packaging", "examples"):
        wanted = {path.relative_to(tree) for path in (tree / folder).rglob("*") if path.is_file()}
        found = {path.relative_to(source) for path in (source / folder).rglob("*")}
        assert wanted - found == set()
    assert not (source / "tests").exists()
    assert not [path for path in source.rglob("*") if path.suffix in (".so", ".pyc")]


def test_a_wheel_of_the_source_distribution_is_whole(tree: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert sources_of(tree) - names == set()
    assert "polymq/py.typed" in names
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"polymq", f"polymq-{VERSION}.dist-info"}


def test_the_metadata_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"polymq-{VERSION}.dist-info/METADATA"))
        assert f"polymq-{VERSION}.dist-info/licenses/LICENSE" in archive.namelist()
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert len(metadata.get_all("Project-URL", [])) == len(PROJECT["project"]["urls"])
    assert metadata["Keywords"]
    assert not [one for one in metadata.get_all("Requires-Dist", []) if " @ " in one]
