"""The things that a pair leaves on the secondary beside messages: records, and the owner."""
