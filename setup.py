"""Builds the compiled kernels where that is possible; everything else stands in pyproject.toml.

Each kernel has a form in plain Python (`polymq/kernel_forms.py`), so a machine without a C compiler
(or without Python's headers) still gets a whole installation: slower, otherwise equal. With
`POLYMQ_KERNELS=compiled` the build fails instead, as the builds of wheels want it. The build never
looks at the processor that it runs on; special instructions are chosen at run time.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "polymq"
BUILT = Path("build/cython")
IS_DEMANDED = os.environ.get("POLYMQ_KERNELS") == "compiled"
"""Whether a kernel that cannot be compiled is an error."""
PROBE = "#include <Python.h>\nint main(void) { return PY_MAJOR_VERSION - 3; }\n"


def note(text: str) -> None:
    print(f"polymq: {text}", file=sys.stderr)


def compiler_works() -> bool:
    """Whether this machine can compile a C file against Python's headers."""
    from distutils.ccompiler import new_compiler
    from distutils.errors import CCompilerError, DistutilsError
    from distutils.sysconfig import customize_compiler

    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "probe.c")
        source.write_text(PROBE)
        compiler = new_compiler()
        customize_compiler(compiler)
        compiler.add_include_dir(sysconfig.get_path("include"))
        compiler.add_include_dir(sysconfig.get_path("platinclude"))
        try:
            compiler.compile([str(source)], output_dir=directory)
        except (CCompilerError, DistutilsError, OSError):
            return False
    return True


def kernel_sources() -> dict[str, Path]:
    """The source of each extension by its name: `kernels/x.pyx`, or `kernels/x.py` where
    `kernels/x.pxd` says of what types it is and there is no `x.pyx`."""
    sources = {".".join(path.with_suffix("").parts): path for path in kernel_files("*.pyx")}
    for path in kernel_files("*.pxd"):
        source = path.with_suffix(".py")
        if (ROOT / source).exists():
            sources.setdefault(".".join(path.with_suffix("").parts), source)
    return sources


def kernel_declarations() -> list[Path]:
    """What kernels declare for one another: where classes have their fields and methods."""
    return kernel_files("*.pxd")


def kernel_files(pattern: str) -> list[Path]:
    """Files of kernels, as the package has them: its folders are links here, and none in a source
    distribution. (A pattern of `**` alone would not look behind links.)"""
    found = (path for folder in PACKAGE.iterdir() for path in folder.glob(f"**/kernels/{pattern}"))
    return sorted(path.relative_to(ROOT) for path in found)


def is_outdated(sources: Iterable[Path], declarations: Iterable[Path]) -> bool:
    """Whether a declaration is newer than C that was made with it. Cython itself does not see it
    where a module has another name than its source; a module that was built before a class of
    another one got a method calls the wrong one."""
    made = [BUILT / source.with_suffix(".c") for source in sources]
    oldest = min((path.stat().st_mtime for path in made if path.exists()), default=0.0)
    return any(path.stat().st_mtime > oldest for path in declarations)


def stay_in_python(sources: dict[str, Path], reason: str) -> list[Extension]:
    """No extensions. Kernels that an earlier build left in the tree belong to older source: an
    editable installation would go on using them, so they go."""
    if IS_DEMANDED:
        sys.exit(f"polymq: POLYMQ_KERNELS is 'compiled', but {reason}")
    note(f"{reason}: the kernels stay in plain Python (slower, otherwise equal).")
    if {"editable_wheel", "build_ext", "develop"} & set(sys.argv):
        for name in sources:
            path = ROOT.joinpath(*name.split("."))
            for stale in path.parent.glob(f"{path.name}.*.so"):
                stale.unlink()
    return []


def kernel_extensions() -> list[Extension]:
    """An optional extension for each of the sources, or none where they cannot be built."""
    sources = kernel_sources()
    if not sources:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return stay_in_python(sources, "Cython is not installed")
    if not compiler_works():
        return stay_in_python(sources, "no working C compiler")
    declarations = kernel_declarations()
    extensions = [
        Extension(
            name,
            [str(source)],
            extra_compile_args=["-O3"],
            optional=not IS_DEMANDED,
            depends=[str(path) for path in declarations],
        )
        for name, source in sources.items()
    ]
    return cythonize(
        extensions,
        build_dir=str(BUILT),
        force=is_outdated(sources.values(), declarations),
        include_path=[str(ROOT)],
        language_level=3,
        quiet=True,
    )


class BuildKernels(build_ext):
    """build_ext that compiles as many kernels at a time as there are processors, says clearly which
    were left in plain Python, and goes on."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = os.cpu_count() or 1

    def build_extension(self, ext: Extension) -> None:
        from distutils.errors import CCompilerError, DistutilsError

        note(f"compiling {ext.name}")
        try:
            super().build_extension(ext)
        except (CCompilerError, DistutilsError, OSError) as error:
            if IS_DEMANDED:
                raise
            note(f"{ext.name} could not be compiled and stays in plain Python: {error}")


setup(ext_modules=kernel_extensions(), cmdclass={"build_ext": BuildKernels})
