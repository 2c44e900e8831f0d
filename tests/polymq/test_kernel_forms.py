"""One form of the kernels runs, and everybody has the same one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from polymq import kernel_forms
from polymq.kernel_forms import FORM, KERNELS, plain_form

LIST = """
import importlib, sys
if sys.argv[1:] == ["nothing compiled"]:
    import importlib.machinery
    importlib.machinery.EXTENSION_SUFFIXES = []
import polymq.program
from polymq.kernel_forms import COMPILED_ONLY, FORM, KERNELS
print(FORM, *{importlib.import_module(name).__file__.rpartition(".")[2] for name in KERNELS})
for name in COMPILED_ONLY:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error)
"""
WITHOUT = "pure py\npolymq.net.kernels.plane has no plain form\n"
compiled = pytest.mark.skipif(FORM == "pure", reason="the kernels are not compiled, or not to run")


def forms(asked: str, *arguments: str) -> str:
    """What a process finds that was asked for a form."""
    environment = {name: value for name, value in os.environ.items() if name != "POLYMQ_KERNELS"}
    ended = subprocess.run(
        [sys.executable, "-c", LIST, *arguments],
        env={**environment, **({"POLYMQ_KERNELS": asked} if asked else {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout


def test_plain_python_is_taken_where_it_is_asked_for() -> None:
    """Though the extensions may stand beside it."""
    assert forms("pure") == WITHOUT


@compiled
@pytest.mark.parametrize("asked", ["", "compiled"])
def test_compiled_kernels_are_taken_where_they_are(asked: str) -> None:
    assert forms(asked).splitlines()[0] == "compiled so"


def test_without_a_compiler_plain_python_runs() -> None:
    assert forms("", "nothing compiled") == WITHOUT


@pytest.mark.parametrize("missing", KERNELS)
def test_one_that_is_not_compiled_means_plain_python_for_all(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Compiled kernels call each other in C: half of them would not load."""
    monkeypatch.delenv("POLYMQ_KERNELS", raising=False)
    monkeypatch.setattr(kernel_forms, "_is_compiled", lambda name: name != missing)
    form, finder = kernel_forms._choose()
    assert form == "pure"
    assert finder is not None
    found = finder.find_spec(KERNELS[0], ["folder"])
    assert found is not None
    assert found.origin is not None
    assert found.origin.endswith("folder/files.py")


def test_the_plain_form_of_a_kernel_has_plain_neighbours() -> None:
    """And what runs is as it was before."""
    walking, writing = "polymq.core_log.kernels.walking", "polymq.core_log.kernels.writing"
    plain_form(walking)
    before = {name: sys.modules.get(name) for name in KERNELS}
    plain = plain_form(walking)
    assert str(plain.__file__).endswith("walking.py")
    assert vars(plain)["with_check"] is vars(plain_form(writing))["with_check"]
    assert {name: sys.modules.get(name) for name in KERNELS} == before
    assert (before[walking] is plain) is (FORM == "pure")
