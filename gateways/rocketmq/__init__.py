"""The door for RocketMQ clients: reading by offset over the remoting protocol."""
