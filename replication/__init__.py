"""The second copy: a master ships its log to slaves. See README.md."""
