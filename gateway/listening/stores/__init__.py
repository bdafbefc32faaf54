"""Stores of versioned values: see `intents.Versioned`."""
