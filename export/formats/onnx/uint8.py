"""The second variant of a program, for processors on which ONNX Runtime's product of uint8 and int8
overflows (x86 without VNNI): its integer products take uint8 on both sides, with zero point 128. Results are
the same to the bit.
"""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper

_PRODUCT = "MatMulInteger"


def uint8_variant(model: ModelProto) -> ModelProto | None:
    """The model with right operands of integer products as uint8 codes, code + 128: graph inputs change their
    type, computed ones are converted. None for a model without integer products.

    Raises ValueError where a graph input is also used otherwise.
    """
    if all(node.op_type != _PRODUCT for node in model.graph.node):
        return None
    out = ModelProto()
    out.CopyFrom(model)
    inputs = {value.name: value for value in out.graph.input}
    nodes = []
    for node in model.graph.node:
        if node.op_type != _PRODUCT:
            nodes.append(node)
            continue
        left, right, zero = node.input
        if right in inputs:
            inputs[right].type.tensor_type.elem_type = TensorProto.UINT8
        else:
            bits, codes = f"{right}.bits", f"{right}.uint8"
            nodes.append(helper.make_node("Cast", [right], [bits], to=TensorProto.UINT8))
            # The zero point is the sign bit, which is all that differs.
            nodes.append(helper.make_node("BitwiseXor", [bits, zero], [codes]))
            right = codes
        product = type(node)()
        product.CopyFrom(node)
        product.input[:] = [left, right, zero, zero]
        nodes.append(product)
    del out.graph.node[:]
    out.graph.node.extend(nodes)
    _check_uses(out, {node.input[1] for node in nodes if node.op_type == _PRODUCT} & set(inputs))
    return out


def _check_uses(model: ModelProto, codes: set[str]) -> None:
    for node in model.graph.node:
        others = codes.intersection(node.input) - ({node.input[1]} if node.op_type == _PRODUCT else set())
        if others:
            raise ValueError(f"{min(others)} is used in an integer product and in {node.op_type}")
