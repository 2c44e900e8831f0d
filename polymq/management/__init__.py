"""RabbitMQ's management HTTP API, as an adapter over the broker's operations."""
