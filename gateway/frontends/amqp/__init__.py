"""AMQP 1.0 as Service Bus speaks it: clients' links become calls of a `Broker`."""
