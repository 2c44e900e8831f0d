"""Who may do what: users, logins, permissions, quotas."""
