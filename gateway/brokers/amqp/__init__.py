"""Namespaces over AMQP 1.0: Azure Service Bus, another Pairgate, RabbitMQ and others."""
