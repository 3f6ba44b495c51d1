"""From an exported program to ONNX files: conversion, naming of inputs, and the split of a layer around its
expert mixture.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx
import torch
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from edgekit.export.formats.onnx.ops import EXPERTS_NODE, OPSET
from edgekit.export.programs import Program
from edgekit.runtime.engines.onnx.programs import check_program

#: What stands for operators in ONNX, by operator.
Operators = Mapping[Any, Callable[..., Any]]


def convert(program: Program, operators: Operators) -> ModelProto:
    """The ONNX model of a program, its `edgekit::` operators decomposed by `operators`; inputs and outputs
    carry the program's names, unused inputs are dropped.
    """
    lowered = program.exported.run_decompositions(dict(operators))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            converted = torch.onnx.export(
                lowered, dynamo=True, opset_version=OPSET, optimize=True, verbose=False
            )
        finally:
            logging.disable(level)
    assert converted is not None
    model = converted.model_proto
    # Names that the exporter made from dictionary keys are replaced by the program's own, by position.
    user_inputs = [s.arg.name for s in lowered.graph_signature.input_specs]
    rename = dict(zip(user_inputs, program.inputs, strict=True))
    rename |= {o.name: n for o, n in zip(model.graph.output, program.outputs, strict=True)}
    # Everything in between is numbered: the names cannot collide, and equal programs give equal files.
    inner = dict.fromkeys(
        [*(i.name for i in model.graph.initializer), *(o for n in model.graph.node for o in n.output if o)]
    )
    rename |= {name: f"t{i}" for i, name in enumerate(n for n in inner if n not in rename)}
    _rename(model.graph, rename)
    used = {i for node in model.graph.node for i in node.input}
    kept = [i for i in model.graph.input if i.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.doc_string, model.producer_name = "", "edgekit"
    for i, node in enumerate(model.graph.node):
        del node.metadata_props[:]
        node.name, node.doc_string = f"n{i}", ""
    del model.metadata_props[:]
    return model


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
        node.output[:] = [names.get(o, o) for o in node.output]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)


def split_at_experts(model: ModelProto) -> tuple[ModelProto, ModelProto]:
    """Cut a layer at its `edgekit::Experts` node into the graphs before and after it.

    The first ends in `experts.x`, `experts.index`, `experts.weight` and whatever else the second needs; the
    second begins with `experts.y` and those values. Constants are copied into the parts that use them.
    """
    graph = model.graph
    node = next(n for n in graph.node if n.op_type == EXPERTS_NODE)
    names = dict(zip(node.input, ("experts.x", "experts.index", "experts.weight"), strict=True)) | {
        node.output[0]: "experts.y"
    }
    if any(i in {v.name for v in graph.input} for i in node.input):
        raise ValueError("an expert mixture reads a graph input directly; it must be computed in the layer")
    _rename(graph, names)
    after_values, after = {"experts.y"}, []
    before: list[NodeProto] = []
    for n in graph.node:
        if n.op_type == EXPERTS_NODE:
            continue
        if any(i in after_values for i in n.input):
            after.append(n)
            after_values.update(n.output)
        else:
            before.append(n)
    constants = {n.output[0]: n for n in before if n.op_type == "Constant"}
    outputs = [v.name for v in graph.output]
    made_before = {o for n in before for o in n.output} - set(constants)
    needed_after = {i for n in after for i in n.input}
    crossing = sorted((needed_after & made_before) - {"experts.x", "experts.index", "experts.weight"})
    first_outputs = [
        "experts.x",
        "experts.index",
        "experts.weight",
        *crossing,
        *(o for o in outputs if o in made_before),
    ]
    second_outputs = [o for o in outputs if o in after_values]
    first = _part(model, before, dict.fromkeys(first_outputs))
    second = _part(
        model, [*(constants[c] for c in sorted(needed_after & set(constants))), *after], second_outputs
    )
    return first, second


def _part(model: ModelProto, nodes: list[NodeProto], outputs: Iterable[str]) -> ModelProto:
    graph = model.graph
    known = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    known |= {"experts.y": _like(known["experts.x"], "experts.y")}
    initializers = {i.name: i for i in graph.initializer}
    produced = {o for n in nodes for o in n.output}
    needed = dict.fromkeys(i for n in nodes for i in n.input if i and i not in produced)
    part = helper.make_graph(
        nodes,
        graph.name,
        [known[i] for i in needed if i not in initializers],
        [known[o] for o in outputs],
        [initializers[i] for i in needed if i in initializers],
    )
    out = helper.make_model(part, opset_imports=list(model.opset_import), functions=list(model.functions))
    out.ir_version, out.producer_name = model.ir_version, model.producer_name
    return out


def _like(value: ValueInfoProto, name: str) -> ValueInfoProto:
    out = ValueInfoProto()
    out.CopyFrom(value)
    out.name = name
    return out


def check(model: ModelProto, program_format: str) -> bytes:
    """The serialized model, after onnx's own checker has passed it, and that of the format's engine."""
    onnx.checker.check_model(model, full_check=False)
    data: bytes = model.SerializeToString(deterministic=True)
    check_program(data, program_format)
    return data
