"""Pulled records to the columns of a table."""
