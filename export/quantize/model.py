"""Quantization of a whole model: the form of every matrix, and, for models that fit in memory, the
quantized weights themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edgekit.export.errors import QuantizationError
from edgekit.export.models.base import Architecture, WeightSpec
from edgekit.export.quantize.codes import quantize_matrix
from edgekit.export.quantize.presets import Choice, Scheme
from edgekit.export.weights import full_name


def choose(architecture: Architecture, scheme: Scheme) -> dict[str, Choice]:
    """The form of every matrix by its full name (`layers.0.self_attn.q_proj`, `layers.0.experts.3.down`,
    `embedding`).

    Experts of a layer share one form: one program serves them all.
    """
    names = [matrix_name(unit, spec) for unit, spec in architecture.weights() if spec.role != "float"]
    if unmatched := scheme.unmatched(names):
        raise QuantizationError(
            f"override {unmatched[0]!r} matches no weight; names look like {names[len(names) // 2]!r}"
        )
    choices = {
        matrix_name(unit, spec): scheme.choose(matrix_name(unit, spec), spec.role, spec.shape)
        for unit, spec in architecture.weights()
        if spec.role != "float"
    }
    for name, choice in choices.items():
        head, separator, tail = name.partition(".experts.")
        first = f"{head}.experts.0.{tail.rpartition('.')[2]}"
        if separator and (choices[first].bits == 16) != (choice.bits == 16):
            raise QuantizationError(
                f"{name}: experts of a layer must all be float or all quantized; widen the override's pattern"
            )
    return choices


def check_experts_alike(architecture: Architecture, choices: Mapping[str, Choice], form: str) -> None:
    """For formats that store the experts of a layer as one.

    Raises:
        QuantizationError: those of a layer differ in bits or groups.
    """
    for unit, spec in architecture.weights():
        layer, separator, _ = unit.partition(".experts.")
        if not separator:
            continue
        own, first = choices[matrix_name(unit, spec)], choices[f"{layer}.experts.0.{spec.name}"]
        if (own.bits, own.group_size) != (first.bits, first.group_size):
            raise QuantizationError(
                f"{unit}.{spec.name}: has {own.bits} bits and the layer's first expert {first.bits}; "
                f"in format {form} the experts of a layer must be alike; widen the override's pattern"
            )


def matrix_name(unit: str, spec: WeightSpec) -> str:
    """The name that presets, overrides and reports use."""
    return spec.name if unit in ("embedding", "head") else f"{unit}.{spec.name}"


def quantize_weights(
    architecture: Architecture, weights: Mapping[str, Tensor], choices: Mapping[str, Choice]
) -> dict[str, Tensor]:
    """The weights of a quantized reference model from float ones, both named as
    `edgekit.export.weights.full_name`.
    """
    out: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for unit, spec in architecture.weights():
        name = full_name(unit, spec)
        if spec.role == "float":
            out[name] = weights[name]
            continue
        is_expert = ".experts." in unit
        value = weights[name][int(unit.rsplit(".", 1)[1])] if is_expert else weights[name]
        choice = choices[matrix_name(unit, spec)]
        quantized = quantize_matrix(value, choice.bits, choice.group_size)
        for stored, tensor in quantized.tensors(name.removesuffix(".weight")).items():
            if is_expert:
                stacks.setdefault(stored, []).append(tensor)
            else:
                out[stored] = tensor
    return out | {name: torch.stack(parts) for name, parts in stacks.items()}
