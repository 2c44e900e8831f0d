"""How secrets are called, and what is shown in their place."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "(hidden)"
SECRET_NAMES: Final = re.compile(r"(^|_)(password|secret|token|access_key|credentials?)$")
"""Settings and values of log lines that are secrets themselves. (An access key is half of one.)"""
