"""Sabotages of reloads, and of what systemd is told."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

CHANGES = "tests/polymq/reloading/test_changes.py"
APPLYING = "tests/polymq/reloading/test_applying.py"
ENGINE = "tests/broker/test_changes.py"
TLS = "tests/polymq/test_tls_files.py"
MANAGER = "tests/polymq/test_service_manager.py"
SOCKETS = "tests/polymq/test_inherited_sockets.py"

OF_THE_RELOADS = (
    Sabotage(
        name="switched-on-by-a-reload",
        why="a reload says that TLS is on, and no port for it is open",
        path="polymq/reloading/changes.py",
        old="        return change\n    return Change(",
        new="        pass\n    return change\n    return Change(",
        tests=(CHANGES,),
    ),
    Sabotage(
        name="restart-settings-applied",
        why="the server takes over a port that it does not listen at",
        path="polymq/reloading/changes.py",
        old="    names = {change.name for change in changes if change.is_applied}\n",
        new="    names = {change.name for change in changes}\n",
        tests=(CHANGES,),
    ),
    Sabotage(
        name="reload-without-checks",
        why="a file that the next start refuses is taken for good",
        path="polymq/reloading/reloader.py",
        old="            check_all(wanted)\n",
        new="",
        tests=(APPLYING,),
    ),
    Sabotage(
        name="reload-leaves-out-the-engine",
        why="limits are reported as applied, and are not",
        path="polymq/reloading/applying.py",
        old="        partial(change_engine, running.engine, changeable_of(settings)),\n",
        new="",
        tests=(APPLYING,),
    ),
    Sabotage(
        name="reloads-at-the-same-time",
        why="two reloads apply two files in any order",
        path="polymq/reloading/reloader.py",
        old="        if self._asked is None:\n",
        new="        if True:\n",
        tests=(APPLYING,),
    ),
    Sabotage(
        name="certificate-taken-while-it-is-written",
        why="a certificate is used before its key is there",
        path="polymq/tls_files.py",
        old="        if now == self._stamp or not is_steady:\n",
        new="        if now == self._stamp:\n",
        tests=(TLS,),
    ),
    Sabotage(
        name="wrong-certificate-told-again-and-again",
        why="the log fills while a certificate is wrong",
        path="polymq/tls_files.py",
        old="            self._stamp = stamp\n        made",
        new="            pass\n        made",
        tests=(TLS,),
    ),
    Sabotage(
        name="old-certificates-after-a-reload",
        why="a look that began before a reload puts the former certificates back",
        path="polymq/tls_files.py",
        old="settings_of is None and count != self._count",
        new="False",
        tests=(TLS,),
    ),
    Sabotage(
        name="absence-counted-anew-by-a-reload",
        why="a shorter time ends no session that is away for long",
        path="broker/sessions/expiry.py",
        old="self._wait(session, session.away_ms or now_ms, time_ms)\n",
        new="self._wait(session, now_ms, time_ms)\n",
        tests=(ENGINE,),
    ),
    Sabotage(
        name="templates-outlive-a-new-durability",
        why="publishers wait for what the former default said",
        path="broker/topics/topics.py",
        old="        self.router.forget_all()  # templates say what acks wait for\n",
        new="",
        tests=(ENGINE,),
    ),
    Sabotage(
        name="ready-lost-in-a-full-socket",
        why="systemd waits for the end of a reload until its timeout",
        path="polymq/service_manager.py",
        old="        if may_wait:\n",
        new="        if False:\n",
        tests=(MANAGER,),
    ),
    Sabotage(
        name="inherited-socket-opens-a-private-server",
        why="other machines reach a server that lets everybody on this machine do everything",
        path="polymq/inherited_sockets.py",
        old="    if not is_loopback(address):\n",
        new="    if False:\n",
        tests=(SOCKETS,),
    ),
)
