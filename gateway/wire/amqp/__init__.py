"""AMQP 1.0: the type system, messages and error conditions."""
