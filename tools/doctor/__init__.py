"""`edgekit doctor`: what this machine has and lacks for edgekit, and what mends it."""
