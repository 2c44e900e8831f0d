"""The frame kernels of MQTT, in the form that the environment asks for.

`POLYMQ_KERNELS=compiled` fails where the compiled form is absent, `pure` takes plain Python; unset
takes the compiled form where it is there. `FORM` says which one runs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

_choice = os.environ.get("POLYMQ_KERNELS", "")
if _choice not in ("", "compiled", "pure"):
    raise ImportError(f"POLYMQ_KERNELS is {_choice!r}: it has to be 'compiled' or 'pure'")

if TYPE_CHECKING or _choice == "pure":
    from polymq.gateways.mqtt.kernels import pure as chosen
elif _choice == "compiled":
    from polymq.gateways.mqtt.kernels import fast as chosen
else:
    try:
        from polymq.gateways.mqtt.kernels import fast as chosen
    except ImportError:
        from polymq.gateways.mqtt.kernels import pure as chosen

FORM: Final = chosen.FORM
encode_acks = chosen.encode_acks
encode_ids = chosen.encode_ids
encode_publishes = chosen.encode_publishes
parse = chosen.parse

__all__ = ["FORM", "encode_acks", "encode_ids", "encode_publishes", "parse"]
