"""`edgekit batch`: a file of prompts in, a file of answers out."""
