"""Checks of the programs of an ONNX bundle before ONNX Runtime sees one: a bundle may come from a stranger,
and a loop that does not end, or a file elsewhere that a program takes for its constants, is valid ONNX.

The file is read for this without a library, in a way that finds more than any of them: a field that comes
twice counts twice, whichever of the two a reader takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

#: Operators by domain.
Known = Mapping[str, frozenset[str]]

#: All operators that the writer emits, of ONNX's own domain; it refuses to write others.
OPERATORS = frozenset(
    (
        "Abs", "Add", "ArgMax", "Attention", "BitwiseXor", "Cast", "Clip", "Concat", "Div", "Exp", "Expand",
        "Gather", "GatherElements", "GatherND", "Gelu", "MatMul", "MatMulInteger", "Mul",
        "RMSNormalization", "Range", "ReduceMax", "ReduceSum", "Reshape", "Round", "ScatterElements",
        "Shape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub", "Tanh", "TopK", "Transpose",
        "Unsqueeze",
    )
)  # fmt: skip
#: The same of bundles for GPUs, by domain.
_FOR_GPUS = OPERATORS | {"DequantizeLinear", "Pow", "ReduceMean", "Sqrt"}
GPU_OPERATORS = {"": _FOR_GPUS, "ai.onnx": _FOR_GPUS, "com.microsoft": frozenset(("MatMulNBits",))}
#: The same of packages for Qualcomm's NPU, whose constants lie in a file beside them.
_FOR_NPUS = _FOR_GPUS | {"Identity", "Max", "QuantizeLinear"}
NPU_OPERATORS = {"": _FOR_NPUS, "ai.onnx": _FOR_NPUS}
WEIGHTS_FILE = "weights.bin"
_OF_FORMATS: Mapping[str, Known] = {"onnx-gpu": GPU_OPERATORS, "qnn": NPU_OPERATORS}
_ON_PROCESSORS: Known = {"": OPERATORS, "ai.onnx": OPERATORS}
#: Programs hold no weights: the writer's have some 10 kB.
MOST_BYTES = 4 << 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Fields of onnx.proto by message.
_GRAPH, _TRAINING, _FUNCTIONS = 7, 20, 25
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15
_OPERATOR, _ATTRIBUTE, _DOMAIN = 4, 5, 7
_TENSOR, _SUBGRAPH, _TENSORS, _SUBGRAPHS, _SPARSE, _SPARSES = 5, 6, 10, 11, 22, 23
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_KEY, _VALUE = 1, 2
_ORT_FORMAT = b"ORTM"


class Refused(Exception):
    """Why a program does not reach ONNX Runtime, in words that follow its name."""


def check_program(data: bytes, program_format: str = "onnx") -> None:
    """Raises Refused unless `data` is an ONNX model of the format's operators alone, without parts that are
    graphs of their own and without data outside of it, but for that in WEIGHTS_FILE where it has such.
    """
    known = _OF_FORMATS.get(program_format, _ON_PROCESSORS)
    beside = WEIGHTS_FILE.encode() if program_format == "qnn" else None
    if len(data) > MOST_BYTES:
        raise Refused(f"has {len(data)} bytes, more than any program")
    if data[4:8] == _ORT_FORMAT:
        raise Refused("is in ONNX Runtime's own format, not in ONNX")
    graphs = 0
    for field, content in _fields(data):
        if field in (_FUNCTIONS, _TRAINING):
            raise Refused("defines functions or a training of its own")
        if field == _GRAPH:
            graphs += 1
            _check_graph(content, known, beside)
    if not graphs:
        raise Refused("is not an ONNX model: it has no graph")


def _check_graph(graph: bytes, known: Known, beside: bytes | None) -> None:
    for field, content in _fields(graph):
        if field == _SPARSE_INITIALIZER:
            raise Refused("holds sparse constants")
        if field == _INITIALIZER:
            _check_tensor(content, beside)
        if field == _NODE:
            _check_node(content, known)


def _check_node(node: bytes, known: Known) -> None:
    fields = list(_fields(node))
    # Whichever of several a reader takes, all are known.
    domains = [content.decode(errors="replace") for field, content in fields if field == _DOMAIN] or [""]
    for domain in domains:
        if domain not in known:
            raise Refused(f"uses operators of {domain[:40]!r}, which no export writes")
    for field, content in fields:
        name = content.decode(errors="replace") if field == _OPERATOR else None
        if name is not None and any(name not in known[domain] for domain in domains):
            raise Refused(f"uses the operator {name[:40]!r}, which no export writes")
        if field == _ATTRIBUTE:
            for part, value in _fields(content):
                if part in (_SUBGRAPH, _SUBGRAPHS, _SPARSE, _SPARSES):
                    raise Refused("holds a graph within its graph, or sparse constants")
                if part in (_TENSOR, _TENSORS):
                    _check_tensor(value)


def _check_tensor(tensor: bytes, beside: bytes | None = None) -> None:
    for field, content in _fields(tensor):
        if field == _EXTERNAL_DATA and beside is not None:
            entry = list(_fields(content))
            if (_KEY, b"location") in entry and [v for f, v in entry if f == _VALUE] != [beside]:
                raise Refused("takes constants from another file than its own")
        elif field in (_EXTERNAL_DATA, _DATA_LOCATION) and beside is None:
            raise Refused("takes constants from another file")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of every field of a message; what is a number has no content."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        start = at
        if kind == _VARINT:
            _, at = _varint(message, at)
            start = at
        elif kind == _BYTES:
            length, start = _varint(message, at)
            at = start + length
        elif kind in (_FIXED64, _FIXED32):
            at = start = at + (8 if kind == _FIXED64 else 4)
        else:
            raise Refused("is not an ONNX model: it has parts of an unknown kind")
        if not 0 < field < 1 << 29 or at > end:
            raise Refused("is not an ONNX model: its parts do not fit into each other")
        yield field, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and where it ends."""
    value = shift = 0
    for i in range(at, min(at + 10, len(message))):
        value |= (message[i] & 127) << shift
        shift += 7
        if message[i] < 128:
            return value & ((1 << 64) - 1), i + 1
    raise Refused("is not an ONNX model: a number in it does not end")
