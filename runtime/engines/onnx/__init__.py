"""ONNX Runtime: one session for each program of a bundle."""
