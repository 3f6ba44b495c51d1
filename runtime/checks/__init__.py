"""Checks of a bundle that `edgekit verify` makes beside those of digests: packages and what they compute."""
