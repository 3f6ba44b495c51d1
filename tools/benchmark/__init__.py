"""`edgekit bench`: configurations that are measured one after the other, each in a process of its own."""
