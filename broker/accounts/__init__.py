"""Users and what belongs to them: passwords, keys, permissions, quotas."""
