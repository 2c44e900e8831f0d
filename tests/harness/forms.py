"""Both forms of a kernel, for tests that compare them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from polymq.kernel_forms import FORM, plain_form


def compiled_form(name: str) -> Any:
    """The compiled form of a kernel; None where plain Python runs."""
    return importlib.import_module(name) if FORM == "compiled" else None


def forms_of(name: str) -> list[ModuleType]:
    """The forms that a kernel has here, the plain one first."""
    compiled = compiled_form(name)
    return [plain_form(name)] if compiled is None else [plain_form(name), compiled]


def form_id(form: ModuleType) -> str:
    """What a test with this form is called."""
    return "pure" if str(form.__file__).endswith(".py") else "compiled"
