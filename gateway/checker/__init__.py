"""
Judges the recorded history of a run: messages that were lost, came too often or took too long.
"""
