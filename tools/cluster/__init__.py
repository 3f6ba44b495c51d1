"""Several machines at work for one command: a Ray cluster, its nodes and workers on them."""
