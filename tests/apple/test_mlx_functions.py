"""MLX's function files: read and written without loss, followed without computing, and refused where MLX
would compute on trust.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import sealing
from support.bundles import make_bundle
from test_mlx import SMALL

from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import EdgekitError, MalformedFile
from edgekit.runtime.engines.mlx import functions as mlx_functions
from edgekit.runtime.engines.mlx import programs as mlx_programs
from edgekit.runtime.engines.mlx.functions import Array, ExportedFunction
from edgekit.runtime.engines.mlx.functions.file import STATES, Entry
from edgekit.runtime.engines.mlx.functions.rules import RULES, Refused, apply
from edgekit.runtime.engines.mlx.programs import DTYPES, Function
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.session import Session

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")


LENGTHS = {"t": 5, "p": 3, "s": 8, "v": 9}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with every kind of function."""
    folder = tmp_path_factory.mktemp("functions")
    return make_bundle(folder, "diffusion_gemma", program_format="mlx", **SMALL["diffusion_gemma"])


def described(bundle: Path) -> dict[str, Function]:
    return mlx_programs.read(manifests.load(bundle), "cpu", "here")


def parsed(bundle: Path, name: str) -> ExportedFunction:
    return mlx_functions.parse((bundle / described(bundle)[name].file).read_bytes(), name)


def arguments(function: Function, lengths: dict[str, int]) -> tuple[Array, ...]:
    """Arguments for lengths; integers of the engine's own are zeros."""
    return tuple(
        Array(
            tuple(lengths[n] if isinstance(n, str) else n for n in a.shape),
            a.dtype,
            1 if a.dtype == "I64" else None,
        )
        for a in function.inputs
    )


@pytest.mark.parametrize("lengths", [{"t": 1, "p": 1, "s": 2, "v": 1}, {"t": 7, "p": 12, "s": 19, "v": 33}])
def test_what_is_followed_is_what_mlx_computes(bundle: Path, lengths: dict[str, int]) -> None:
    for name, function in described(bundle).items():
        wanted = arguments(function, lengths)
        made = mlx_functions.replay(parsed(bundle, name), wanted, name)
        values = [mx.array(np.zeros(a.shape, DTYPES[a.dtype])) for a in wanted]
        values = [
            v.view(mx.bfloat16) if a.dtype == "BF16" else v for a, v in zip(wanted, values, strict=True)
        ]
        computed = mx.import_function(str(bundle / function.file))(*values)
        for a, b, c in zip(made, computed, function.outputs, strict=True):
            assert (a.shape, a.dtype) == (tuple(b.shape), c.dtype), (name, c.name)


def test_every_primitive_that_is_written_has_a_rule() -> None:
    assert STATES.keys() == RULES.keys()


def test_files_that_end_early_or_go_on_are_refused(bundle: Path) -> None:
    data = (bundle / described(bundle)["full.before"].file).read_bytes()
    for length in (0, 7, 20, len(data) // 2, len(data) - 1):
        with pytest.raises(
            MalformedFile, match=r"^here: an exported function (ends early|has a list of|asks for)"
        ):
            mlx_functions.parse(data[:length], "here")
    with pytest.raises(MalformedFile, match="goes on behind its end"):
        mlx_functions.parse(data + b"\0", "here")
    with pytest.raises(MalformedFile, match="MLX's primitive 'Softmix', which edgekit does not write"):
        mlx_functions.parse(data.replace(b"Softmax", b"Softmix", 1), "here")


def edited(function: ExportedFunction, name: str, change: Callable[[Entry], Entry]) -> ExportedFunction:
    """The function with the first entry of a primitive changed."""
    at = next(i for i, entry in enumerate(function.tape) if entry.name == name)
    return replace(function, tape=(*function.tape[:at], change(function.tape[at]), *function.tape[at + 1 :]))


def state(form: str, *values: int) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, state=struct.pack(form, *values))


WRONG: list[tuple[str, str, Callable[[Entry], Entry], str]] = [
    ("full.before", "Softmax", lambda e: replace(e, inputs=(999,)), "an array that is not there yet"),
    ("full.before", "Softmax", lambda e: replace(e, inputs=e.inputs * 2), "takes 1 arrays, not 2"),
    ("full.before", "Matmul", lambda e: replace(e, inputs=e.inputs[:1]), "takes 2 arrays, not 1"),
    ("full.before", "Concatenate", lambda e: replace(e, inputs=()), "takes some arrays, not 0"),
    ("full.before", "Softmax", lambda e: replace(e, dtype=b"\x09\0\0\0\2"), "makes F32, not F16"),
    ("full.before", "Softmax", lambda e: replace(e, dtype=b"\x63\0\0\0\2"), "type 6300000002 is not one"),
    ("full.before", "AsType", lambda e: replace(e, state=b"\x0d\0\0\0\x08"), "type 0d00000008 is not one"),
    ("full.before", "Concatenate", state("<i", 9), "axis 9 of an array of shape"),
    ("full.before", "Concatenate", state("<i", -1), "axis -1 of an array of shape"),
    ("full.before", "ArgSort", state("<i", 2), "axis 2 of an array of shape"),
    ("full.before", "GatherAxis", state("<i", 0), "along axis 0"),
    ("full.before", "Transpose", state("<Qiiii", 4, 0, 2, 1, 1), r"axes \[0, 2, 1, 1\] of an array of 4 dim"),
    ("full.before", "Reshape", state("<Qii", 2, -1, -1), r"elements as \[-1, -1\]"),
    ("full.before", "Reshape", state("<Qii", 2, -1, 0), r"elements as \[-1, 0\]"),
    ("full.before", "Reshape", state("<Qii", 2, 7, 1 << 30), r"elements as \[7, 1073741824\]"),
    ("full.before", "Squeeze", state("<Qi", 1, 1), r"axes \[1\]"),
    ("full.before", "ExpandDims", state("<Qi", 1, 40), r"axes \[40\] of an array"),
    ("full.before", "Reduce", state("<iQi", 2, 1, 0), r"over \[0\] of \[1, "),
    ("full.before", "Reduce", state("<iQi", 77, 1, 2), "of kind 77"),
    ("full.before", "QuantizedMatmul", state("<iiiB", 64, 3, 0, 1), "of 3 bits in groups of 64"),
    ("full.before", "QuantizedMatmul", state("<iiiB", 128, 8, 0, 1), "shapes"),
    ("full.before", "BroadcastAxes", state("<Qi", 1, -9), r"but for axes \[-9\]"),
    ("full.before", "Gather", state("<QiQi", 1, 0, 1, 2), "slices|indices up to"),
    ("head", "ArgReduce", state("<ii", 1, 0), r"axes \[1\]"),
    ("head", "ArgReduce", state("<ii", 1, -2), "axis -2 of an array of shape"),
    ("head", "ScatterAxis", state("<ii", 0, 1), "of kind 0; it replaces alone"),
    ("head", "ScatterAxis", state("<ii", 1, 0), "along axis 0"),
    ("head", "ScatterAxis", lambda e: replace(e, inputs=e.inputs[:2]), "takes 3 arrays, not 2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "primitive", "change", "said"), WRONG)
def test_what_mlx_must_not_be_given_is_refused(
    bundle: Path, name: str, primitive: str, change: Callable[[Entry], Entry], said: str
) -> None:
    function = edited(parsed(bundle, name), primitive, change)
    wanted = arguments(described(bundle)[name], LENGTHS)
    with pytest.raises(MalformedFile, match=said) as refused:
        made = mlx_functions.replay(function, wanted, "here")
        outputs = described(bundle)[name].outputs
        expected = [tuple(LENGTHS[n] if isinstance(n, str) else n for n in o.shape) for o in outputs]
        if [a.shape for a in made] != expected:
            raise MalformedFile("gives other shapes")
    assert "\n" not in str(refused.value)


def test_indices_must_be_known_to_lie_within(bundle: Path) -> None:
    """MLX gathers from wherever an index points."""
    function, wanted = (
        parsed(bundle, "full.before"),
        list(arguments(described(bundle)["full.before"], LENGTHS)),
    )
    at = next(i for i, a in enumerate(wanted) if a.dtype == "I64")
    for bound in (None, 3):
        wanted[at] = replace(wanted[at], bound=bound)
        with pytest.raises(MalformedFile, match=r"\(Gather\): indices up to (\?|2) where there are 2"):
            mlx_functions.replay(function, wanted, "here")
    at = next(i for i, e in enumerate(function.tape) if e.data is not None and e.dtype[0] == 3 and e.shape)
    data = b"\xff\xff\xff\x7f" + (function.tape[at].data or b"")[4:]
    constant = replace(function.tape[at], data=data)
    far = replace(function, tape=(*function.tape[:at], constant, *function.tape[at + 1 :]))
    with pytest.raises(MalformedFile, match=r"\(GatherAxis\): indices up to 2147483647 where there are"):
        mlx_functions.replay(far, arguments(described(bundle)["full.before"], LENGTHS), "here")


@pytest.mark.parametrize("bound", [None, 6])
def test_what_is_scattered_must_be_known_to_lie_within(bound: int | None) -> None:
    z, index, values = Array((2, 5), "F32"), Array((2, 1), "U32", bound), Array((2, 1), "F32")
    place = struct.pack("<ii", 1, 1)
    with pytest.raises(Refused, match=r"indices up to (\?|5) where there are 5"):
        apply("ScatterAxis", place, (z, index, values))
    assert apply("ScatterAxis", place, (z, replace(index, bound=5), values)) == z


def test_a_file_of_another_kind_is_refused(bundle: Path) -> None:
    function, wanted = parsed(bundle, "final"), arguments(described(bundle)["final"], LENGTHS)
    again = (*function.tape, function.tape[-1])
    wrong: list[tuple[Any, Any, str]] = [
        (replace(function, shapeless=False), wanted, "is for the sizes that it was traced with alone"),
        (function, wanted[:1], "takes 2 arrays, not 1"),
        (function, (wanted[1], wanted[1]), r"an input is F32 of 3 dimensions, not F32 of shape \[64\]"),
        (function, (replace(wanted[0], dtype="I64"), wanted[1]), "an input is F32 of 3 dimensions, not I64"),
        (replace(function, tape=again), wanted, "an array is there twice, or not at all"),
        (replace(function, outputs=(77,)), wanted, "its outputs: refers to an array that is not there yet"),
        (
            replace(function, inputs=function.inputs[:1] * 2),
            (wanted[0],) * 2,
            "two inputs are the same array",
        ),
    ]
    for changed, given, said in wrong:
        with pytest.raises(MalformedFile, match=said):
            mlx_functions.replay(changed, given, "here")
    data = mlx_functions.encode(function, "cpu")
    first = next(e.name for e in function.tape if e.name)
    stream = struct.pack("<iii", 0, 0, 0) + struct.pack("<Q", len(first))
    for words in ((0, 7, 0), (1, 0, 0), (0, 0, 1)):
        other = data.replace(stream, struct.pack("<iii", *words) + stream[12:], 1)
        with pytest.raises(
            MalformedFile, match=rf"asks for stream {words[0]} of device {words[1]}.{words[2]}"
        ):
            mlx_functions.parse(other, "here")
    mixed = data.replace(stream, struct.pack("<iii", 0, 1, 0) + stream[12:], 1)
    with pytest.raises(MalformedFile, match="runs on 2 devices; one can be"):
        mlx_functions.parse(mixed, "here")


def test_the_engine_follows_a_function_before_mlx_has_it(bundle: Path, tmp_path: Path) -> None:
    """Files that the manifest describes as they are: MLX would end the process over some of them."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    file = described(bundle)["full.before"].file
    for primitive, change in (
        ("Concatenate", state("<i", 900)),
        ("QuantizedMatmul", state("<iiiB", 32, 8, 0, 1)),
    ):
        function = edited(parsed(bundle, "full.before"), primitive, change)
        (copy / file).write_bytes(mlx_functions.encode(function, "cpu"))
        sealing.relist(copy, file)
        with (
            Session(copy) as session,
            pytest.raises(EdgekitError, match=rf"full.before.mlxfn: entry \d+ \({primitive}\)"),
        ):
            session.denoise(np.arange(4), HeadRequest())
    (copy / file).write_bytes(mlx_functions.encode(parsed(bundle, "full.before"), "gpu"))
    sealing.relist(copy, file)
    with (
        Session(copy) as session,
        pytest.raises(EdgekitError, match="is for the gpu, not the cpu; export the bundle"),
    ):
        session.denoise(np.arange(4), HeadRequest())
