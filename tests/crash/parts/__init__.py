"""What the clients of a crash workload do, one subject a file: see `part.py`."""
