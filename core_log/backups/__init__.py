"""Backups: copies of the log as of one position, which share the files of its segments."""
