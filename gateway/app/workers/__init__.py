"""
Several processes for one gateway (`workers = n`): a parent, and workers that serve the clients.

Read `docs/explanation/architecture.md`, "Workers", first.
"""
