"""What nobody wants any more leaves the log."""
