"""A slave's part: it follows another broker's log."""
