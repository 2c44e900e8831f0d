"""Definitions: everything that operators have configured in the log, as one document."""
