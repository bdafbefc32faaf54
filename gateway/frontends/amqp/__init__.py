"""AMQP 1.0 as Service Bus speaks it: links of clients become calls of a `Broker`."""
