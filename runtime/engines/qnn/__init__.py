"""Packages for Qualcomm's NPU, by ONNX Runtime's provider for it."""
