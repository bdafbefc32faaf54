"""Terms of Storage Queue that the port, the engine and the front end share."""
