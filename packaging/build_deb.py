"""Build the Debian package of a wheel.

    python packaging/build_deb.py WHEEL [--python PYTHON] [--output DIRECTORY]

The package has an environment of its own in /usr/lib/polymq, with PolyMQ and the libraries that it
needs, beside units for systemd, a configuration, man pages and completion. It runs with the
interpreter that it was built with, which has to be the distribution's own (default:
/usr/bin/python3), and so has to be built on each release of Debian or Ubuntu that it is for. It
needs dpkg-deb, which compresses as DPKG_DEB_COMPRESSOR_TYPE says, and the package index for the
libraries.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HERE: Final = ROOT / "packaging"
HOME: Final = Path("usr/lib/polymq")
"""Of the environment, below the root of the file system."""
DOCUMENTATION: Final = Path("usr/share/doc/polymq")
EXTRA: Final = "jwt"
"""What is installed beside the libraries that every server needs."""
COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/polymq",
    "zsh": "usr/share/zsh/vendor-completions/_polymq",
    "fish": "usr/share/fish/vendor_completions.d/polymq.fish",
}
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
SCRIPTS: Final = ("postinst", "prerm", "postrm")


def main() -> None:
    """Build the package, and name it."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("wheel", type=Path)
    options.add_argument("--python", default="/usr/bin/python3", metavar="PYTHON")
    options.add_argument("--output", type=Path, default=ROOT / "dist", metavar="DIRECTORY")
    chosen = options.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory(prefix="polymq-deb-") as directory:
        tree = Path(directory, "tree")
        tree.mkdir(mode=0o755)
        install_environment(tree, chosen.wheel.resolve(), chosen.python)
        install_files(tree, project["version"])
        install_what_the_program_writes(tree)
        write_control(tree, project, chosen.python)
        print(pack(tree, project["version"], chosen.output))


def install_environment(tree: Path, wheel: Path, python: str) -> None:
    """An environment that believes that it is in /usr/lib/polymq, compiled and without pip."""
    home = tree / HOME
    run(python, "-m", "venv", str(home))
    pip = (str(home / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--no-compile", f"{wheel}[{EXTRA}]")
    run(*pip, "uninstall", "--yes", "setuptools", "pip")
    for name in os.listdir(home / "bin"):
        path = home / "bin" / name
        if name != "polymq" and not name.startswith("python"):
            path.unlink()
    program = home / "bin" / "polymq"
    for path in (program, home / "pyvenv.cfg"):
        path.write_text(path.read_text(encoding="utf-8").replace(str(tree), ""), encoding="utf-8")
    for cache in home.rglob("__pycache__"):
        shutil.rmtree(cache)
    compiling = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    run(python, *compiling, "-s", str(tree), "-p", "/", str(home / "lib"))


def install_files(tree: Path, version: str) -> None:
    """What is copied as it is."""
    units = tree / "usr/lib/systemd/system"
    copy(HERE / "debian/polymq.sh", tree / "usr/bin/polymq", 0o755)
    for unit in sorted((HERE / "systemd").glob("*.service")):
        copy(unit, units / unit.name)
    copy(HERE / "polymq.toml", tree / "etc/polymq/polymq.toml")
    copy(HERE / "debian/lintian-overrides", tree / "usr/share/lintian/overrides/polymq")
    copy(HERE / "debian/copyright", tree / DOCUMENTATION / "copyright")
    copy(ROOT / "polymq.example.toml", tree / DOCUMENTATION / "polymq.example.toml")
    for page in sorted((ROOT / "docs").glob("*.md")):
        copy(page, tree / DOCUMENTATION / page.name)
    entry = (
        f"polymq ({version}) unstable; urgency=medium\n\n"
        "  * See CHANGELOG.md of the source distribution.\n\n"
        f" -- The PolyMQ developers <polymq@localhost>  {formatdate(epoch())}\n"
    )
    write_compressed(tree / DOCUMENTATION / "changelog.gz", entry.encode())


def install_what_the_program_writes(tree: Path) -> None:
    """Man pages and completion, which the installed program makes, and not that of this tree."""
    python = (str(tree / HOME / "bin/python"), "-I")
    pages = tree / "usr/share/man/man1"
    run(*python, str(HERE / "make_man_pages.py"), str(pages))
    for page in sorted(pages.glob("*.1")):
        write_compressed(page.with_name(f"{page.name}.gz"), page.read_bytes())
        page.unlink()
    for shell, path in COMPLETIONS.items():
        script = tree / path
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_bytes(run(*python, "-m", "polymq", "completion", shell))
        script.chmod(0o644)


def write_control(tree: Path, project: dict[str, object], python: str) -> None:
    """The folder DEBIAN: what dpkg knows of the package."""
    size = sum(path.lstat().st_size for path in tree.rglob("*") if path.is_file())
    minor = int(run(python, "-c", "import sys; print(sys.version_info.minor)"))
    urls = project["urls"]
    assert isinstance(urls, dict)
    control = (HERE / "debian/control.in").read_text(encoding="utf-8")
    control = control.format(
        version=project["version"],
        architecture=ARCHITECTURES[os.uname().machine],
        installed_kib=size // 1024,
        python=f"3.{minor}",
        next_python=f"3.{minor + 1}",
        homepage=urls["Homepage"],
    )
    directory = tree / "DEBIAN"
    directory.mkdir(mode=0o755)
    (directory / "control").write_text(control, encoding="utf-8")
    (directory / "conffiles").write_text("/etc/polymq/polymq.toml\n", encoding="utf-8")
    for script in SCRIPTS:
        copy(HERE / "debian" / script, directory / script, 0o755)
    (directory / "md5sums").write_text("".join(checksums(tree)), encoding="utf-8")


def checksums(tree: Path) -> Iterator[str]:
    """The lines of md5sums."""
    files = sorted(
        str(path.relative_to(tree))
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and "DEBIAN" not in path.parts
    )
    for first in range(0, len(files), 500):
        yield run("md5sum", *files[first : first + 500], directory=tree).decode()


def pack(tree: Path, version: str, output: Path) -> Path:
    """The package. All files are root's, and nobody else may write them."""
    for path in tree.rglob("*"):
        if not path.is_symlink():
            is_program = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if is_program else 0o644)
    output.mkdir(parents=True, exist_ok=True)
    package = output / f"polymq_{version}_{ARCHITECTURES[os.uname().machine]}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", str(tree), str(package))
    return package


def copy(source: Path, target: Path, mode: int = 0o644) -> None:
    """A file, with the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write_compressed(path: Path, content: bytes) -> None:
    """A gzip file that is the same whenever it is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def epoch() -> int:
    """The time of the build, which `SOURCE_DATE_EPOCH` may say."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))


def run(*command: str, directory: Path | None = None) -> bytes:
    """What a command prints; it has to end well."""
    ended = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, check=False)
    if ended.returncode:
        sys.exit(f"failed with exit code {ended.returncode}: {' '.join(command)}")
    return ended.stdout


if __name__ == "__main__":
    main()
