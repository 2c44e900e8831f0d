"""Reading without a queue's consumer: by offset, key or time, and RocketMQ's groups."""
