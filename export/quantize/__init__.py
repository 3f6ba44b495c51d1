"""Quantization: presets decide each matrix's bits, codes are made once and serve every format."""

from edgekit.export.presets import DEFAULT_PRESET, PRESETS
from edgekit.export.quantize.codes import Quantized, check_finite, quantize_matrix
from edgekit.export.quantize.model import check_experts_alike, choose, matrix_name, quantize_weights
from edgekit.export.quantize.presets import Choice, Override, Scheme, parse_override
from edgekit.export.quantize.report import QuantizationReport, TensorReport, joined_report

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "Choice",
    "Override",
    "QuantizationReport",
    "Quantized",
    "Scheme",
    "TensorReport",
    "check_experts_alike",
    "check_finite",
    "choose",
    "joined_report",
    "matrix_name",
    "parse_override",
    "quantize_matrix",
    "quantize_weights",
]
