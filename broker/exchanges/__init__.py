"""AMQP's exchanges and what is bound to them."""
