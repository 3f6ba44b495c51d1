"""Operations with arguments, for the comparison of the evaluator with coremltools and with torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mil_programs import Array, Case

F16, F32, I32 = np.float16, np.float32, np.int32
FLOATS = (F32, F16)
rng = np.random.default_rng(20260202)


def normal(*shape: int, dtype: Any = F32, scale: float = 1.0) -> Array:
    return (scale * rng.standard_normal(shape)).astype(dtype)


def uniform(low: float, high: float, *shape: int, dtype: Any = F32) -> Array:
    return rng.uniform(low, high, shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = I32) -> Array:
    return rng.integers(low, high, shape).astype(dtype)


def wide(array: Array) -> torch.Tensor:
    """float16 as torch computes it best: in float32."""
    return torch.from_numpy(array.astype(F32) if array.dtype == F16 else array)


def from_torch(function: Callable[..., Any], *arrays: Array) -> Callable[[], Any]:
    """Expected values: torch's, for these arrays."""
    return lambda: function(*(wide(array) for array in arrays))


def elementwise() -> Iterator[Case]:
    anywhere = [
        "abs", "atan", "ceil", "cos", "erf", "exp", "exp2", "floor", "relu", "relu6", "round", "sigmoid",
        "sign", "sin", "softplus", "softsign", "square", "tanh",
    ]  # fmt: skip
    for dtype in FLOATS:
        for op in anywhere:
            yield Case(op, {"x": normal(3, 5, 2, dtype=dtype, scale=3)}, ios=(16, 18))
        for op in ("acos", "asin", "atanh", "tan"):
            yield Case(op, {"x": uniform(-0.9, 0.9, 7, 3, dtype=dtype)})
        for op in ("cosh", "sinh"):
            yield Case(op, {"x": uniform(-3, 3, 7, 3, dtype=dtype)})
        positive = uniform(0.1, 9, 4, 3, dtype=dtype)
        yield Case("sqrt", {"x": positive})
        # From iOS 17 on epsilon may have another type than x.
        for op in ("log", "rsqrt", "inverse"):
            yield Case(op, {"x": positive}, {"epsilon": dtype(0.01)}, ios=(16,), label="own_epsilon")
            yield Case(op, {"x": positive}, {"epsilon": F32(1e-3)}, ios=(17, 18), label="float_epsilon")
            yield Case(op, {"x": positive}, ios=(16, 18))
        x = normal(2, 9, dtype=dtype, scale=2)
        yield Case("clip", {"x": x}, {"alpha": dtype(-1.5), "beta": dtype(0.75)}, ios=(16, 17))
        yield Case("threshold", {"x": x}, {"alpha": dtype(0.25)})
        for op in ("elu", "leaky_relu", "thresholded_relu"):
            yield Case(op, {"x": x.copy()}, {"alpha": dtype(0.3)})
        for op in ("clamped_relu", "linear_activation", "scaled_tanh", "sigmoid_hard"):
            yield Case(op, {"x": x}, {"alpha": dtype(0.3), "beta": dtype(0.6)})
        image = normal(2, 3, 4, 5, dtype=dtype)
        yield Case("prelu", {"x": image}, {"alpha": normal(3, dtype=dtype)})
        yield Case("softplus_parametric", {"x": image},
                   {"alpha": normal(3, dtype=dtype), "beta": normal(3, dtype=dtype)})  # fmt: skip
        for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
            yield Case("gelu", {"x": normal(40, dtype=dtype, scale=2)}, {"mode": mode}, label=mode)
        yield Case("silu", {"x": x}, expected=from_torch(F.silu, x))
        for axis in (-1, 0, 1):
            yield Case("softmax", {"x": normal(3, 4, 5, dtype=dtype, scale=4)}, {"axis": axis},
                       label=f"axis{axis % 3}")  # fmt: skip
        for op in ("add", "sub", "mul", "real_div", "maximum", "minimum", "floor_div", "mod"):
            pair = {"x": normal(2, 1, 4, dtype=dtype, scale=5), "y": normal(3, 1, dtype=dtype, scale=2)}
            yield Case(op, pair, ios=(16, 18))
        yield Case("pow", {"x": uniform(0.2, 3, 3, 1, dtype=dtype), "y": normal(4, dtype=dtype)})
        halves = {"x": np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], dtype)}
        yield Case("round", halves, label="halves")
    for op in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        for dtype in (*FLOATS, I32):
            yield Case(
                op, {"x": integers(-2, 3, 4, 1, 3, dtype=dtype), "y": integers(-2, 3, 5, 1, dtype=dtype)}
            )
    for op in ("add", "sub", "mul", "floor_div", "mod", "maximum", "minimum"):
        yield Case(op, {"x": integers(-20, 20, 3, 4), "y": integers(1, 6, 4)})
    for op in ("logical_and", "logical_or", "logical_xor"):
        yield Case(op, {"x": integers(0, 2, 4, 3, dtype=bool), "y": integers(0, 2, 3, dtype=bool)})
    yield Case("logical_not", {"x": integers(0, 2, 4, 3, dtype=bool)})
    for dtype in (*FLOATS, I32):
        # coremltools leaves the condition out of the declared shape: it must not be the largest.
        a, b = integers(0, 9, 1, 4, dtype=dtype), integers(10, 19, 2, 3, 1, dtype=dtype)
        yield Case("select", {"cond": integers(0, 2, 3, 1, dtype=bool), "a": a, "b": b})
    for source in (*FLOATS, I32, np.int8, np.uint16):
        for target in ("fp16", "fp32", "int32", "bool", "int8", "uint8", "int16", "uint16"):
            low = 0 if "u" in target or source is np.uint16 else -100
            numbers = rng.uniform(low, 100, 9).astype(source)
            yield Case("cast", {"x": numbers}, {"dtype": target}, label=target)


def reductions() -> Iterator[Case]:
    ops = ["reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
           "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square"]  # fmt: skip
    for dtype in FLOATS:
        for op in ops:
            x = {"x": normal(3, 4, 5, dtype=dtype)}
            yield Case(op, x, {"axes": [1]}, label="middle")
            yield Case(op, x, {"axes": [-1, 0], "keep_dims": True}, label="kept", ios=(16, 18))
        yield Case("reduce_sum", {"x": normal(3, 4, dtype=dtype)}, label="all")
        yield Case("reduce_max", {"x": normal(3, 4, dtype=dtype)}, {"keep_dims": True}, label="all_kept")
        yield Case("reduce_log_sum", {"x": uniform(0.1, 2, 3, 4, dtype=dtype)}, {"axes": [0]})
        for op in ("reduce_argmax", "reduce_argmin"):
            x = {"x": normal(3, 6, 4, dtype=dtype)}
            yield Case(op, x, {"axis": 1}, ios=(16,), label="old")
            yield Case(op, x, {"axis": -1, "keep_dims": True, "output_dtype": "uint16"}, label="kept")
    for op in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
        yield Case(op, {"x": integers(-5, 5, 4, 3)}, {"axes": [0]})
    ties = np.array([[1, 3, 3, 0], [2, 2, 2, 2]], F32)
    yield Case("reduce_argmax", {"x": ties}, {"axis": 1}, label="ties")


def products() -> Iterator[Case]:
    for dtype in FLOATS:
        weight, bias = normal(7, 6, dtype=dtype), normal(7, dtype=dtype)
        for shape in ((6,), (3, 6), (2, 3, 6)):
            yield Case("linear", {"x": normal(*shape, dtype=dtype)}, {"weight": weight, "bias": bias},
                       label=f"rank{len(shape)}", ios=(16, 18))  # fmt: skip
        yield Case("linear", {"x": normal(3, 6, dtype=dtype)}, {"weight": weight}, label="plain")
        a, b = normal(2, 1, 4, 3, dtype=dtype), normal(5, 3, 6, dtype=dtype)
        yield Case("matmul", {"x": a, "y": b}, label="broadcast")
        yield Case("matmul", {"x": a.swapaxes(-1, -2).copy(), "y": b.swapaxes(-1, -2).copy()},
                   {"transpose_x": True, "transpose_y": True}, label="transposed")  # fmt: skip
        # Constant operands, which are taken in blocks of matrices or rows.
        for shape in ((4, 3), (1, 4, 3), (5, 4, 3), (2, 5, 4, 3), (2, 1, 4, 3)):
            yield Case("matmul", {"x": normal(*shape, dtype=dtype)}, {"y": b},
                       label="stack" + "x".join(map(str, shape)))  # fmt: skip
        yield Case("matmul", {"x": normal(5, 4, 3, dtype=dtype)},
                   {"y": normal(1, 6, 3, dtype=dtype), "transpose_y": True}, label="one_matrix")  # fmt: skip
        yield Case("matmul", {"x": normal(2, 4, 3, dtype=dtype)},
                   {"y": normal(6, 3, dtype=dtype), "transpose_y": True}, label="rows")  # fmt: skip
        yield Case("matmul", {"y": normal(4, 3, dtype=dtype)}, {"x": normal(5, 4, dtype=dtype)}, label="left")
        for equation, left, right in (
            ("nchw,nwhu->nchu", (2, 3, 4, 5), (2, 5, 4, 6)),
            ("nchw,nwhu->nchu", (1, 3, 4, 5), (2, 5, 1, 6)),
            ("chw,whr->chr", (3, 4, 5), (5, 4, 2)),
        ):
            pair = [normal(*left, dtype=dtype), normal(*right, dtype=dtype)]
            yield Case("einsum", {"values": pair}, {"equation": equation}, label=f"{equation[:2]}{left[0]}")
        q, k, v = (normal(2, 3, t, 8, dtype=dtype) for t in (5, 7, 7))
        qkv = {"query": q, "key": k, "value": v}
        yield Case("scaled_dot_product_attention", qkv)
        mask = normal(5, 7, dtype=dtype)
        yield Case("scaled_dot_product_attention", {**qkv, "attn_mask": mask}, label="additive")
        allowed = integers(0, 2, 2, 1, 5, 7, dtype=bool)
        allowed[..., 0] = True
        yield Case("scaled_dot_product_attention", {**qkv, "attn_mask": allowed}, label="boolean",
                   expected=from_torch(F.scaled_dot_product_attention, q, k, v, allowed))  # fmt: skip
        x = normal(3, 4, 5, 6, dtype=dtype)
        yield Case("layer_norm", {"x": x}, {"axes": [-1]}, label="last")
        yield Case("layer_norm", {"x": x}, {"axes": [2, 3], "gamma": normal(5, 6, dtype=dtype),
                   "beta": normal(5, 6, dtype=dtype), "epsilon": dtype(1e-3)},
                   label="two", ios=(16, 18))  # fmt: skip
        yield Case("l2_norm", {"x": x}, {"epsilon": dtype(1e-3)})
        gamma, beta, mean = (normal(4, dtype=dtype) for _ in range(3))
        variance = uniform(0.5, 2, 4, dtype=dtype)
        yield Case("batch_norm", {"x": x}, {"mean": mean, "variance": variance, "gamma": gamma, "beta": beta},
                   expected=from_torch(F.batch_norm, x, mean, variance, gamma, beta))  # fmt: skip
        yield Case("instance_norm", {"x": x}, {"gamma": gamma, "beta": beta},
                   expected=from_torch(lambda x, g, b: F.instance_norm(x, weight=g, bias=b),
                                       x, gamma, beta))  # fmt: skip
        yield from _convolutions(dtype)


def _convolutions(dtype: Any) -> Iterator[Case]:
    bias = normal(6, dtype=dtype)
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ("pointwise", (2, 4, 5, 3), (6, 4, 1, 1), {}),
        ("plain", (1, 4, 7, 6), (6, 4, 3, 2), {"stride": (2, 1)}),
        ("dilated", (2, 4, 9, 8), (6, 4, 3, 3), {"dilation": (2, 1), "padding": (1, 2)}),
        ("groups", (1, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "padding": (1, 0)}),
        ("depthwise", (1, 6, 5, 5), (6, 1, 3, 3), {"groups": 6}),
        ("same", (1, 4, 6, 7), (6, 4, 3, 5), {"padding": "same", "dilation": (1, 2)}),
    ]
    for label, size, kernel, options in shapes:
        x, weight = normal(*size, dtype=dtype), normal(*kernel, dtype=dtype, scale=0.3)
        padding = options.get("padding", (0, 0))
        constants: dict[str, Any] = {
            "weight": weight, "bias": bias, "pad_type": "same" if padding == "same" else "custom",
            "strides": list(options.get("stride", (1, 1))),
            "dilations": list(options.get("dilation", (1, 1))),
            "groups": options.get("groups", 1),
        }  # fmt: skip
        if padding != "same":
            constants["pad"] = [p for p in padding for _ in range(2)]
        yield Case("conv", {"x": x}, constants, label=label, ios=(16, 18),
                   expected=from_torch(functools.partial(F.conv2d, **options), x, weight, bias))  # fmt: skip
    x, weight = normal(2, 3, 9, dtype=dtype), normal(4, 3, 3, dtype=dtype)
    yield Case("conv", {"x": x}, {"weight": weight, "strides": [2]}, label="one_axis",
               expected=lambda x=x, w=weight: F.conv1d(wide(x), wide(w), stride=2))  # fmt: skip
    x, weight = normal(1, 2, 4, 5, 6, dtype=dtype), normal(3, 2, 2, 3, 2, dtype=dtype)
    yield Case("conv", {"x": x, "weight": weight}, label="three_axes_and_no_constant",
               expected=from_torch(F.conv3d, x, weight))  # fmt: skip
    # Even kernels: the surplus element of the padding goes behind the last one, or before the first.
    x, weight = normal(1, 2, 5, 6, dtype=dtype), normal(3, 2, 2, 4, dtype=dtype)
    for pad_type, padding in (("same", (1, 2, 0, 1)), ("same_lower", (2, 1, 1, 0))):
        yield Case("conv", {"x": x}, {"weight": weight, "pad_type": pad_type}, label=f"even_{pad_type}",
                   expected=from_torch(lambda x, w, p=padding: F.conv2d(F.pad(x, p), w),
                                       x, weight))  # fmt: skip
    # 7 elements in steps of 2 give 4; the last kernel reaches one element too far, the first one too early.
    x, weight = normal(1, 2, 7, dtype=dtype), normal(3, 2, 3, dtype=dtype)
    yield Case("conv", {"x": x}, {"weight": weight, "pad_type": "same", "strides": [2]}, label="same_strided",
               expected=lambda x=x, w=weight: F.conv1d(wide(x), wide(w), stride=2, padding=1))  # fmt: skip


def movements() -> Iterator[Case]:
    for dtype in (*FLOATS, I32):
        x = integers(-99, 99, 3, 4, 5, dtype=dtype)
        yield Case("identity", {"x": x})
        yield Case("shape", {"x": x})
        yield Case("reshape", {"x": x}, {"shape": [5, -1, 2]}, ios=(16, 18))
        yield Case("reshape", {"x": x}, {"shape": [0, 0, -1]}, ios=(16,), label="zeros")
        yield Case("reshape", {"x": x}, {"shape": [1, 0, -1, 0]}, ios=(17, 18), label="zeros_from_the_end")
        yield Case("expand_dims", {"x": x}, {"axes": [-1, 0]})
        one = x.reshape(1, 3, 1, 20)
        yield Case("squeeze", {"x": one}, {"axes": [-2]})
        yield Case("squeeze", {"x": one}, label="all")
        yield Case("transpose", {"x": x}, {"perm": [2, 0, 1]})
        yield Case("transpose", {"x": x}, {"perm": [-1, -3, -2]}, label="negative")
        yield Case("flatten2d", {"x": x}, {"axis": 2})
        yield Case("concat", {"values": [x, x[:, :1].copy(), x[:, 2:].copy()]}, {"axis": -2})
        yield Case("concat", {"values": [x[:1].copy()]}, {"axis": 0}, label="of_one")
        two = [x, integers(0, 9, 3, 4, 5, dtype=dtype)]
        yield Case("concat", {"values": two}, {"axis": 1, "interleave": True}, label="interleaved",
                   expected=lambda t=two: torch.stack([wide(a) for a in t], 2).flatten(1, 2))  # fmt: skip
        yield Case("stack", {"values": two}, {"axis": 1}, expected=lambda t=two: np.stack(t, 1))
        yield Case("split", {"x": x}, {"axis": 1, "num_splits": 2})
        yield Case("split", {"x": x}, {"axis": -1, "split_sizes": [1, 3, 1]}, label="sizes")
        yield Case("tile", {"x": x}, {"reps": [2, 1, 3]})
        yield Case("reverse", {"x": x}, {"axes": [0, -1]})
        yield Case("reverse", {"x": x}, label="all")
        yield Case("slice_by_size", {"x": x}, {"begin": [1, -3, 0], "size": [2, 2, -1]})
        bounds = {"begin": [2, 0, -4], "end": [0, 3, 9], "stride": [-1, 2, 1]}
        masks = {"begin_mask": [False, True, False], "end_mask": [True, False, False]}
        yield Case("slice_by_index", {"x": x}, {**bounds, **masks}, ios=(16, 18))
        yield Case(
            "slice_by_index", {"x": x}, {**bounds, "squeeze_mask": [True, False, False]}, label="squeezed"
        )
        at = {"begin": np.array([1, 0, 2], I32), "end": np.array([3, 4, 4], I32)}
        yield Case("slice_by_index", {"x": x, **at}, label="at_run_time")
        yield Case("sliding_windows", {"x": x}, {"axis": 1, "size": 2, "stride": 2},
                   expected=lambda x=x: wide(x).unfold(1, 2, 2).transpose(-1, -2))  # fmt: skip
        yield Case("band_part", {"x": x}, {"lower": 1, "upper": 2})
        yield Case("band_part", {"x": x}, {"lower": -1, "upper": 0}, label="triangle")
        yield Case("fill_like", {"ref_tensor": x}, {"value": dtype(7)})
        for axis, reverse in ((0, False), (-1, True)):
            yield Case("cumsum", {"x": x}, {"axis": axis, "reverse": reverse}, label=f"reverse{reverse}")
        yield Case("cumsum", {"x": x}, {"axis": 1, "exclusive": True}, label="exclusive",
                   expected=lambda x=x: wide(x).cumsum(1) - wide(x))  # fmt: skip
        yield Case("slice_update", {"x": x, "update": integers(0, 9, 2, 4, 2, dtype=dtype)},
                   {"begin": [0, 0, 1], "end": [2, 0, 4], "stride": [1, 1, 2],
                    "end_mask": [False, True, False]})  # fmt: skip
        yield Case("slice_update", {"x": x, "update": integers(0, 9, 4, 5, dtype=dtype)},
                   {"begin": [-1, 0, 0], "end": [0, 4, 5], "squeeze_mask": [True, False, False]},
                   label="squeezed")  # fmt: skip
        hot = integers(0, 5, 3, 2)
        yield Case("one_hot", {"indices": hot},
                   {"one_hot_vector_size": 5, "axis": 1, "on_value": dtype(3), "off_value": dtype(-1)},
                   expected=lambda i=hot: F.one_hot(torch.from_numpy(i).long(), 5).movedim(-1, 1) * 4 - 1,
                   label=np.dtype(dtype).name)  # fmt: skip
    for dtype in FLOATS:
        x = normal(2, 3, 4, dtype=dtype)
        yield Case("pad", {"x": x}, {"pad": [1, 2, 0, 3], "constant_val": dtype(1.5)})
        yield Case("pad", {"x": x}, {"pad": [2, 1], "mode": "reflect"}, label="reflect")
        yield Case("pad", {"x": x}, {"pad": [1, 0, 2, 3], "mode": "replicate"}, label="replicate")
        limits = {"start": np.array(0.5, dtype), "end": np.array(4, dtype), "step": np.array(0.75, dtype)}
        yield Case("range_1d", limits, expected=lambda: torch.arange(0.5, 4, 0.75))
    yield Case(
        "range_1d",
        {"end": np.array(-7, I32)},
        {"start": 5, "step": -3},
        expected=lambda: np.arange(5, -7, -3),
    )
    yield Case(
        "fill", {"shape": np.array([2, 3], I32)}, {"value": F16(2.5)}, expected=lambda: np.full((2, 3), 2.5)
    )
    x = normal(6, 5, 2)
    yield Case("reshape_like", {"x": x, "ref_tensors": [normal(2, 3, 4), normal(1, 5, 2)]},
               {"begins": [0, 1], "ends": [2, 0], "end_masks": [False, True]},
               expected=lambda x=x: x.reshape(2, 3, 5, 2))  # fmt: skip
    sparse = integers(0, 2, 3, 4)
    yield Case("non_zero", {"x": sparse}, expected=from_torch(torch.nonzero, sparse))


def sorting() -> Iterator[Case]:
    for dtype in (*FLOATS, I32):
        x = rng.permutation(60).reshape(3, 4, 5).astype(dtype) - 30
        for ascending in (False, True):
            yield Case("topk", {"x": x}, {"k": 3, "axis": -1, "ascending": ascending}, ios=(16, 18),
                       label=f"ascending{ascending}")  # fmt: skip
            yield Case(
                "argsort", {"x": x}, {"axis": 1, "ascending": ascending}, label=f"ascending{ascending}"
            )
        yield Case("topk", {"x": x}, {"k": 2, "axis": 0, "return_indices": False}, label="values")
        yield Case("topk", {"x": x}, {"k": 4, "axis": 1, "output_indices_dtype": "uint16"}, label="short")
    # Equal values keep their order.
    ties = np.array([[2, 7, 7, 1, 7, 0], [5, 5, 5, 5, 5, 5]], F32)
    yield Case("topk", {"x": ties}, {"k": 4}, label="ties",
               expected=lambda: (np.take_along_axis(ties, np.array([[1, 2, 4, 0], [0, 1, 2, 3]]), 1),
                                 np.array([[1, 2, 4, 0], [0, 1, 2, 3]])))  # fmt: skip
    bytes_ = np.array([[0, 255, 3, 200]], np.uint8)
    yield Case("topk", {"x": bytes_}, {"k": 4}, label="unsigned",
               expected=lambda: (np.array([[255, 200, 3, 0]]), np.array([[1, 3, 2, 0]])))  # fmt: skip


def indexing() -> Iterator[Case]:
    for dtype in (*FLOATS, I32):
        x = integers(-99, 99, 4, 5, 6, dtype=dtype)
        for axis, shape in ((0, (7,)), (1, (2, 3)), (-1, ())):
            size = x.shape[axis]
            label = f"axis{axis % 3}"
            yield Case("gather", {"x": x, "indices": integers(-size, size, *shape)}, {"axis": axis},
                       ios=(16,), label=label)  # fmt: skip
            yield Case("gather", {"x": x, "indices": integers(0, size, *shape)}, {"axis": axis},
                       ios=(17, 18), label=label)  # fmt: skip
        yield Case("gather", {"indices": integers(0, 4, 3, 3)}, {"x": x, "axis": 0},
                   label=f"of_a_constant_{np.dtype(dtype).name}")  # fmt: skip
        yield Case("gather", {"x": x, "indices": integers(0, 6, 4, 5, 2)}, {"axis": 2, "batch_dims": 2},
                   label="batches2")  # fmt: skip
        yield Case("gather", {"x": x, "indices": integers(0, 6, 4, 3)}, {"axis": 2, "batch_dims": 1},
                   label="batches1")  # fmt: skip
        yield Case(
            "gather_along_axis", {"x": x, "indices": integers(0, 5, 4, 3, 6)}, {"axis": 1}, ios=(17, 18)
        )
        yield Case("gather_along_axis", {"x": x, "indices": integers(-5, 5, 4, 3, 6)}, {"axis": 1}, ios=(16,))
        places = integers(0, 4, 3, 2)
        yield Case(
            "gather_nd", {"x": x, "indices": places}, expected=lambda x=x, p=places: x[p[:, 0], p[:, 1]]
        )
        batched = integers(0, 5, 4, 2, 1)
        yield Case("gather_nd", {"x": x, "indices": batched}, {"batch_dims": 1}, label="batches",
                   expected=lambda x=x, p=batched[..., 0]: x[np.arange(4)[:, None], p])  # fmt: skip
        yield from _scatters(dtype)


def _scatters(dtype: Any) -> Iterator[Case]:
    """torch has the same operation along an axis. Repeated indices only where their order does not matter."""
    reduce = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    data = integers(-9, 9, 4, 5, 3, dtype=dtype)
    for mode in ("update", "add", "sub", "mul", "max", "min"):
        repeated = mode != "update"
        index = integers(0, 5, 4, 6, 3) if repeated else np.argsort(normal(4, 5, 3), 1).astype(I32)[:, :4]
        updates = integers(-3, 4, *index.shape, dtype=dtype)

        def along(d: Array = data, i: Array = index, u: Array = updates, m: str = mode) -> torch.Tensor:
            places, values = torch.from_numpy(i).long(), wide(u)
            if m == "update":
                return wide(d).scatter(1, places, values)
            if m == "sub":
                return wide(d).scatter_reduce(1, places, -values, "sum")
            return wide(d).scatter_reduce(1, places, values, reduce[m])

        yield Case("scatter_along_axis", {"data": data, "indices": index, "updates": updates},
                   {"axis": 1, "mode": mode}, expected=along, label=mode)  # fmt: skip
        rows = integers(0, 5, 6) if repeated else rng.permutation(5)[:3].astype(I32)
        slabs = integers(-3, 4, 4, rows.size, 3, dtype=dtype)
        full = np.broadcast_to(rows[:, None], (4, rows.size, 3))
        yield Case("scatter", {"data": data, "indices": rows, "updates": slabs}, {"axis": 1, "mode": mode},
                   expected=lambda i=full, u=slabs, f=along: f(i=np.array(i), u=u),
                   label=mode, ios=(16, 18))  # fmt: skip
        # Whole rows by two indices: the same along the first axis of a flattened tensor.
        pairs = np.stack(
            np.unravel_index(integers(0, 20, 5) if repeated else rng.permutation(20)[:5], (4, 5)), -1
        )
        lines = integers(-3, 4, 5, 3, dtype=dtype)
        flat = np.broadcast_to((pairs[:, 0] * 5 + pairs[:, 1])[:, None], (5, 3))
        tensors = {"data": data, "indices": pairs.astype(I32), "updates": lines}
        yield Case("scatter_nd", tensors, {"mode": mode},
                   expected=lambda i=flat, u=lines, f=along: f(
                       d=np.array(data.reshape(1, 20, 3)), i=np.array(i)[None], u=u[None]).reshape(4, 5, 3),
                   label=mode, ios=(16, 18))  # fmt: skip


def quantizations() -> Iterator[Case]:
    for dtype in FLOATS:
        x = normal(3, 4, 5, dtype=dtype, scale=40)
        scales = uniform(0.2, 2, 4, dtype=dtype)
        for target in (np.int8, np.uint8):
            name = np.dtype(target).name
            yield Case("quantize", {"input": x}, {"scale": dtype(0.5), "zero_point": target(5),
                       "output_dtype": name}, label=name)  # fmt: skip
            # Halves go to the even neighbour, and what is beyond the type to its end.
            halves = (np.arange(-300, 300, dtype=dtype) / dtype(2)).reshape(4, 150)
            yield Case("quantize", {"input": halves / dtype(64)},
                       {"scale": dtype(1 / 64), "output_dtype": name}, label=f"halves_{name}")  # fmt: skip
            zeros = integers(0, 9, 4, dtype=target)
            yield Case("quantize", {"input": x}, {"scale": scales, "zero_point": zeros, "axis": 1,
                       "output_dtype": name}, label=f"channels_{name}")  # fmt: skip
            codes = integers(0, 127, 3, 4, 5, dtype=target)
            vectors = {"scale": scales, "zero_point": zeros, "axis": -2}
            expected = (codes.astype(F32) - zeros[:, None]) * scales[:, None]
            yield Case("dequantize", {"input": codes}, vectors, expected=lambda e=expected: e,
                       label=f"channels_{np.dtype(dtype).name}")  # fmt: skip
            yield Case("dequantize", {"input": codes}, {"scale": dtype(0.25)}, label=np.dtype(dtype).name,
                       expected=lambda c=codes: c * 0.25)  # fmt: skip


@functools.cache
def all_cases() -> list[Case]:
    groups = (elementwise, reductions, products, movements, sorting, indexing, quantizations)
    return [case for group in groups for case in group()]
