"""
RabbitMQ's own clients, AMQP 0-9-1, before any namespace: what they declare, publish and consume
becomes calls of a `Broker`.
"""
