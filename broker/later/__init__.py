"""Messages that wait for a time before anybody sees them."""
