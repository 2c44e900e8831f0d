"""Settings that all unit tests share: how hypothesis searches, and how much time it may take."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# Deadlines per example measure the machine, not the code; the shared runners are noisy.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
# `make sabotage` wants to know that an example fails, not the smallest one that does.
settings.register_profile(
    "sabotage",
    parent=settings.get_profile("default"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
    database=None,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
