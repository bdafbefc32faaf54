"""What the gateway costs and what it gives, each beside a baseline in the same run."""
