"""The scalable queue listener: takes messages from queues and runs a handler for each."""
