"""Messages that nobody sees before they are due."""
