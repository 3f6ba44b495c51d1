"""`edgekit plan`: what a model takes on a device, before it is downloaded or bought."""
