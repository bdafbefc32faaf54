"""Starts and stops listener processes by the depth and age of their queues."""
