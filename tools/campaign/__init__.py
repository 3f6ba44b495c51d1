"""Bundles damaged on purpose, and what the commands make of them."""
