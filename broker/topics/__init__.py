"""Topics, their routes and settings, retained messages, and how messages get into topics."""
