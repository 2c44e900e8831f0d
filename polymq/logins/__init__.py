"""What decides about logins and permissions outside of this server: tokens, HTTP services, plugins
of amqtt, LDAP directories."""
