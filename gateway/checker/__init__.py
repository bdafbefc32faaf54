"""Judges the recorded history of a run: what was lost, what came too often, what took too long."""
