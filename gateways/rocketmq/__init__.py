"""The listener for RocketMQ clients: reading by offset over the remoting protocol."""
