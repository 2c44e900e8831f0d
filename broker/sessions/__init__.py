"""MQTT's sessions: subscriptions, messages in flight, what waits for a client."""
