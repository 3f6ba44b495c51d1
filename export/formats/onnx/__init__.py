"""The `onnx` format: programs as .onnx files, for ONNX Runtime."""
