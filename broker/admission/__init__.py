"""Who comes in, and the port that a principal gets: each part behind its permissions."""
