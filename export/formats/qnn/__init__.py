"""The format for Qualcomm's NPU: packages of ONNX graphs with quantized weights and activations."""
