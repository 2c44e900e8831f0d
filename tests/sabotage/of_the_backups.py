"""Mistakes in backups: what they have, what they share, and what holds the log for them."""

from __future__ import annotations

from tests.sabotage.plan import Sabotage

BACKUPS = "tests/core_log/test_backups.py"
RESERVATIONS = "tests/broker/test_backup_reservations.py"

OF_THE_BACKUPS = (
    Sabotage(
        name="damaged-record-backed-up",
        why="a backup is taken of a record that cannot be read, and looks complete",
        path="core_log/backups/segments.py",
        old="        elif reason != STOP_END:\n            raise CorruptRecord(",
        new="        elif reason < 0:\n            raise CorruptRecord(",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="damage-between-records-overlooked",
        why="a flipped bit behind the last record of a segment is not found",
        path="core_log/backups/segments.py",
        old="            if hashes.copy().hexdigest() != wanted[stop]:\n",
        new="            if False:\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="earlier-backup-overwritten",
        why="bytes that an earlier backup needs are gone if the next one is interrupted",
        path="core_log/backups/segments.py",
        old="        _write(files, target, lambda: files.truncate(writing, first))\n",
        new="        _write(files, target, lambda: files.truncate(writing, 0))\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="grown-file-not-compared",
        why="damage of an earlier backup gets the checksum of a sound one",
        path="core_log/backups/segments.py",
        old="        if has and hashes.hexdigest() != digest:\n",
        new="        if False:\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="backup-not-synced",
        why="a power cut leaves a backup that is listed, and whose bytes are not there",
        path="core_log/backups/segments.py",
        old="        check.finish()\n"
        "        _write(files, target, lambda: files.fdatasync(writing))\n",
        new="        check.finish()\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="names-of-a-backup-not-synced",
        why="a power cut leaves a backup that is listed, and whose files are not there",
        path="core_log/backups/taking.py",
        old='        _sync_names(files, f"{directory}/{SEGMENTS_NAME}")\n        manifest = ',
        new="        manifest = ",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="backup-before-its-files",
        why="an interrupted backup is listed, and cannot be restored",
        path="core_log/backups/taking.py",
        old="        parts: list[Part] = []\n        copied_bytes = 0\n",
        new="        parts: list[Part] = []\n        copied_bytes = 0\n"
        "        write_manifest(files, directory, source.manifest(source.position, (), 0, 0))\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="needed-segment-pruned",
        why="a backup that stays has lost a file",
        path="core_log/backups/taking.py",
        old="        return removed, remove_unneeded(files, directory, remaining)\n",
        new="        return removed, remove_unneeded(files, directory, remaining[1:])\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="history-not-compared",
        why="backups of two histories share segments, and neither can be restored",
        path="core_log/backups/manifest.py",
        old="        return epoch_covers(pairs, self.epoch, self.position, end)\n",
        new="        return True\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="restored-in-the-same-term",
        why="a broker that went back in time looks like the one that went on",
        path="core_log/backups/restoring.py",
        old="settings=settings, above_term=0)",
        new="settings=settings)",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="restored-without-comparing",
        why="a damaged backup becomes a store, if the damage is behind a record",
        path="core_log/backups/restoring.py",
        old="        if digest != part.sha256:\n",
        new="        if False:\n",
        tests=(BACKUPS,),
    ),
    Sabotage(
        name="reservation-of-a-dead-command",
        why="a backup that was killed holds the disk for ever",
        path="broker/retention/reservations.py",
        old="        if watched.renewed:\n",
        new="        if watched.renewed or True:\n",
        tests=(RESERVATIONS,),
    ),
    Sabotage(
        name="reservation-that-comes-too-late",
        why="a segment is deleted under a backup that began while retention looked at its holders",
        path="broker/retention/retention.py",
        old="core.store.retire(self.reservations.bound(position))",
        new="core.store.retire(position)",
        tests=(RESERVATIONS,),
    ),
    Sabotage(
        name="reservation-without-effect",
        why="segments are deleted that a backup has yet to copy",
        path="broker/retention/retention.py",
        old="        limit = self.reservations.bound(store.checkpointed)\n",
        new="        limit = store.checkpointed\n",
        tests=(RESERVATIONS,),
    ),
    Sabotage(
        name="backup-before-publishers",
        why="publishers are refused for want of room that a backup holds",
        path="broker/retention/reservations.py",
        old="            self._active.clear()\n",
        new="            pass\n",
        tests=(RESERVATIONS,),
    ),
    Sabotage(
        name="ended-backups-hold-the-log",
        why="`polymq store` names a backup that has ended, and hides who holds the disk",
        path="broker/retention/retention.py",
        old="self.holder, self._witness = self._reserved_for(), None\n",
        new="self.holder = self._reserved_for()\n",
        tests=(RESERVATIONS,),
    ),
)
