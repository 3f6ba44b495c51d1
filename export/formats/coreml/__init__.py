"""The `coreml` format: packages (.mlpackage) of Core ML."""
