"""`edgekit sweep`: a grid of exports and measurements as units of work, each done once."""
