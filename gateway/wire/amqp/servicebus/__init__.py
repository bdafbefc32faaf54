"""The conventions of Service Bus on AMQP 1.0: addresses, tokens, batches, locks and sessions."""
