"""The inner loops over AMQP frames, in the form that the environment asks for.

`POLYMQ_KERNELS=compiled` fails where the compiled form is absent, `pure` takes plain Python; unset
takes the compiled form where it is there. `FORM` says which one runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from polymq.gateways.amqp.kernels import pure

if TYPE_CHECKING:
    from polymq.gateways.amqp.kernels.pure import FORM, encode_deliveries, parse, scan_properties
else:
    _wanted = os.environ.get("POLYMQ_KERNELS", "")
    if _wanted not in ("", "compiled", "pure"):
        raise ImportError(f"POLYMQ_KERNELS is compiled or pure, not {_wanted!r}")
    try:
        if _wanted == "pure":
            raise ImportError("plain Python was asked for")
        from polymq.gateways.amqp.kernels.fast import (
            FORM,
            encode_deliveries,
            parse,
            scan_properties,
        )
    except ImportError:
        if _wanted == "compiled":
            raise
        from polymq.gateways.amqp.kernels.pure import (
            FORM,
            encode_deliveries,
            parse,
            scan_properties,
        )

__all__ = ["FORM", "encode_deliveries", "parse", "pure", "scan_properties"]
