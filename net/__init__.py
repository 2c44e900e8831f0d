"""What the byte protocols share: listeners, the read buffer, deadlines, one write per iteration."""
