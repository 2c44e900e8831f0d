"""Reloads of the configuration."""

from __future__ import annotations

from typing import Literal

from polymq.admin.operations import Call, Given, Group, Operation, Value
from polymq.broker.accounts import audit
from polymq.broker.port import Reason, Refused
from polymq.errors import Failure
from polymq.reloading.reloader import Reloader
from polymq.setting_kinds import Reload


class AppliedSetting(Value):
    """A setting that has a new value.

    Attributes:
        name: of the setting.
        old: as in the configuration file; secrets are not shown.
        new: likewise.
        applies_to: what it applies to.
    """

    name: str
    old: str
    new: str
    applies_to: Literal["all", "new connections"]


class PendingSetting(Value):
    """A setting that has another value in the configuration than the server uses.

    Attributes:
        name: of the setting.
        old: that the server uses.
        new: that the configuration has.
        used_by: the server, which needs a restart, or the sink, which reads it when it starts.
    """

    name: str
    old: str
    new: str
    used_by: Literal["server", "sink"]


class Reloaded(Value):
    """What a reload has done.

    Attributes:
        applied: settings that are in force now.
        restart: settings that are not.
    """

    applied: list[AppliedSetting]
    restart: list[PendingSetting]


class ReloadHandlers:
    """Carries out reloads."""

    def __init__(self, reloader: Reloader | None) -> None:
        self._reloader = reloader

    def group(self) -> Group:
        """The operation."""
        return Group(
            name="configuration",
            about="The settings of the server.",
            operations=[
                Operation(
                    method="POST",
                    path="/reload",
                    name="reloadConfiguration",
                    summary="Read the configuration again, and apply what can be applied",
                    about="A configuration that is wrong changes nothing. SIGHUP does the same.",
                    right="admin",
                    handler=self._reload,
                    answer=Reloaded,
                )
            ],
        )

    async def _reload(self, call: Call[Given]) -> Reloaded:
        if self._reloader is None:
            raise Refused(Reason.READ_ONLY, "this server has no configuration to read again")
        try:
            outcome = await self._reloader.reload()
        except Failure as failure:
            text = f"nothing was changed: {failure.text}"
            raise Refused(Reason.BAD_ARGUMENT, text) from failure
        audit.note("configuration reloaded", by=call.caller)
        return Reloaded(
            applied=[
                AppliedSetting(
                    name=change.name,
                    old=change.old,
                    new=change.new,
                    applies_to="all" if change.reload is Reload.AT_ONCE else "new connections",
                )
                for change in outcome.applied
            ],
            restart=[
                PendingSetting(
                    name=change.name,
                    old=change.old,
                    new=change.new,
                    used_by="sink" if change.reload is Reload.SINK else "server",
                )
                for change in outcome.restart
            ],
        )
