"""PyTorch, on NVIDIA GPUs or the processor, for bundles of the native format."""
