"""What a message is in the log, and the way back from records to messages."""
