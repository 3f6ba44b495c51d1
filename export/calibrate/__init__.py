"""What activations are while a model denoises: texts to run it on, and what is seen of its products."""
