"""The state of a broker as records of the log, and its cache in `state.db`."""
