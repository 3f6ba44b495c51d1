"""TVM: programs compiled for a processor or a GPU, weights as the native core stores them."""
