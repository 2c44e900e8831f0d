"""The inner loop over JSON texts, in the form that the environment asks for.

`POLYMQ_KERNELS=compiled` fails where the compiled form is absent, `pure` takes plain Python; unset
takes the compiled form where it is there. `FORM` says which one runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.gateways.http_cloudevents.kernels import pure

if TYPE_CHECKING:
    from polymq.gateways.http_cloudevents.kernels.pure import FORM, children
else:
    _wanted = os.environ.get("POLYMQ_KERNELS", "")
    if _wanted not in ("", "compiled", "pure"):
        raise ImportError(f"POLYMQ_KERNELS is compiled or pure, not {_wanted!r}")
    try:
        if _wanted == "pure":
            raise ImportError("plain Python was asked for")
        from polymq.gateways.http_cloudevents.kernels.fast import FORM, children
    except ImportError:
        if _wanted == "compiled":
            raise
        from polymq.gateways.http_cloudevents.kernels.pure import FORM, children

__all__ = ["FORM", "children", "pure"]
