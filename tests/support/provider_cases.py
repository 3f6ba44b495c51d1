"""What a provider computes, beside the reference that holds the same codes and rounds as it does:

    python -m support.provider_cases model FOLDER PROVIDER PRESET GROUP_SIZE
    python -m support.provider_cases pass FOLDER PROVIDER PRESET GROUP_SIZE [streamed]
    python -m support.provider_cases adapted FOLDER PROVIDER PRESET GROUP_SIZE RANK
    python -m support.provider_cases generation FOLDER PROVIDER MODEL

A folder holds a bundle, and the checkpoint that it is of where no model that comes with edgekit is named.
Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.models.base import LayerInputs
from edgekit.export.quantize import Scheme
from edgekit.export.reference import MASKED, ReferenceModel
from edgekit.flashload.reader import FlashFile
from edgekit.runtime import engines
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.layer import Layer
from edgekit.runtime.engines.base import Engine
from edgekit.runtime.engines.mixture import Mixture
from edgekit.runtime.errors import RunsOnProcessor
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.session import SessionOptions, open_session
from support.bundles import passes, quantized_reference
from support.core_layer import core_layer
from support.loop_parity import check_tokens, prompt_loop, run
from support.low_rank import use_adapters
from support.native_programs import stored_run
from support.providers import PROVIDERS, Provider
from support.reference_denoiser import ReferenceDenoiser

Array = np.ndarray[Any, Any]
Inputs = Mapping[str, Array]
#: Positions of prefix KV, and of the pass.
LENGTHS = (0, 1), (9, 6), (4, 7)
#: The most that a code which was rounded to the other side may change.
STEP = 3e-2


def of_model(folder: Path, provider: Provider, preset: str, group_size: str) -> dict[str, Any]:
    """How far a whole pass is from the reference's, relative to the largest score, and y, k and v of every
    layer kind, with prefix KV and without: the largest error. Where activations are rounded it is the median,
    and none may be larger than a STEP: a code between two integers may turn with the last digit of a norm.
    """
    whole = of_pass(folder, provider, preset, group_size)
    model = quantized_reference(folder / "checkpoint", Scheme(preset, int(group_size)), provider.format)
    bundle, rng = Bundle.open(folder / "bundle"), np.random.default_rng(0)
    engine = engines.create(bundle, 2, name=provider.engine)
    errors: dict[str, dict[int, list[float]]] = {}
    with bundle.open_weights() as file:
        for i, layer in enumerate(bundle.model.layers):
            for prefix, length in LENGTHS:
                inputs = _inputs(bundle, model, i, prefix, length, rng)
                with provider.activations(), torch.no_grad():
                    expected = _expected(model, i, inputs)
                found = (
                    core_layer(bundle.path, i, layer, inputs)
                    if engine is None
                    else _by_engine(engine, file, layer, inputs)
                )
                kind = model.architecture.layers[i].kind
                for output, (a, b) in enumerate(zip(found, expected, strict=True)):
                    assert a.shape == b.shape, (a.shape, b.shape)
                    errors.setdefault(kind, {}).setdefault(output, []).append(_error(a, b))
    assert max(max(found) for own in errors.values() for found in own.values()) < STEP, errors
    usual: Callable[[list[float]], Any] = np.median if provider.rounds else max
    each = {kind: max(float(usual(found)) for found in own.values()) for kind, own in errors.items()}
    return whole | {"errors": each | {"whole pass": whole["error"]}}


def _inputs(
    bundle: Bundle, model: ReferenceModel, i: int, prefix: int, length: int, rng: np.random.Generator
) -> dict[str, Array]:
    layer, own = bundle.model.layers[i], model.architecture.layers[i]
    kept = (1, layer.kv_heads, prefix, layer.head_dim)
    # Programs of other layers have no input for a mask, or are given one that hides nothing.
    hides = own.uses_mask
    mask = np.where(hides & (rng.random((length, prefix + length)) < 0.3), MASKED, 0)
    mask[:, -1] = 0  # somebody is seen
    given: dict[str, Array] = {
        "x": 3 * rng.standard_normal((1, length, bundle.model.hidden_size)),
        "prefix_k": rng.standard_normal(kept),
        "prefix_v": rng.standard_normal(kept),
        **bundle.model.ropes[layer.rope].tables(np.arange(prefix, prefix + length)),
        "mask": mask,
    }
    phase = rng.integers(0, 2, 1) if own.uses_phase else np.zeros(1, np.int64)
    return {name: each.astype(np.float32) for name, each in given.items()} | {"phase": phase}


def _expected(model: ReferenceModel, i: int, inputs: Inputs) -> list[Array]:
    given = LayerInputs(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    made = model.architecture.layers[i].module(given, model._unit(f"layers.{i}."))
    return [each.numpy() for each in made]


def _by_engine(engine: Engine, file: FlashFile, layer: Layer, inputs: Inputs) -> tuple[Array, Array, Array]:
    """An engine's functions take and give arrays of its own kind: PyTorch's take tensors."""
    own: Callable[[Any], Any] = _tensor if engine.name == "torch" else lambda array: array

    def stored(name: str) -> dict[str, Any]:
        return {each: own(values) for each, (_, values) in stored_run(file, name).items()}

    weights, given = stored(layer.run), {name: own(each) for name, each in inputs.items()}
    if not layer.experts:
        y, [(k, v)] = engine.layers(layer.program, [given], weights)
        return np.asarray(y), np.asarray(k), np.asarray(v)
    routed = engine.route(layer.program, given, weights)
    mixture = Mixture(*map(np.asarray, (routed.x, routed.index, routed.weight)), len(layer.experts))
    for number, name in enumerate(layer.experts):
        expert = stored(name)
        mixture.add(
            number,
            lambda x, expert=expert: np.asarray(engine.expert(layer.program, own(x), expert)),
        )
    y = engine.join(layer.program, given, routed, own(mixture.total()), weights)
    return np.asarray(y), np.asarray(routed.k), np.asarray(routed.v)


def _tensor(array: Array) -> torch.Tensor:
    """The same numbers. bfloat16 is uint16 in numpy."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _error(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def of_pass(
    folder: Path, provider: Provider, preset: str, group_size: str, how: str = "kept"
) -> dict[str, Any]:
    """How far the logits are from the reference's, relative to the largest, with weights kept or streamed."""
    model = quantized_reference(folder / "checkpoint", Scheme(preset, int(group_size)), provider.format)
    options = SessionOptions(resident_bytes=0 if how == "streamed" else None)
    with open_session(folder / "bundle", options, engine=provider.engine) as session:
        with provider.activations():
            found, expected = passes(session, model)
        statistics = session.statistics()
    assert found.logits is not None
    return {"error": _error(found.logits, expected.numpy()), "read": statistics["bytes_read"]} | _ran_by(
        statistics
    )


def of_adapted(folder: Path, provider: Provider, preset: str, group_size: str, rank: str) -> dict[str, Any]:
    """`of_pass` of a model whose layers have low-rank adapters."""
    with pytest.MonkeyPatch.context() as patch:
        use_adapters(patch, int(rank))
        return of_pass(folder, provider, preset, group_size)


def of_generation(folder: Path, provider: Provider, name: str) -> dict[str, Any]:
    """How many tokens there are, and how many decisions differ from the reference's, between what is nearly
    equal. Raises AssertionError for others.
    """
    model = quantized_reference(resolve(name), Scheme("mixed4", 32), provider.format)
    with Generator(folder / "bundle", engine=provider.engine) as generator:
        loop = prompt_loop(generator, "What is 12 + 34?", Settings(max_new_tokens=16, steps=3, seed=3))
    with open_session(folder / "bundle", engine=provider.engine) as session, provider.activations():
        found = run(session, loop)
        # The last digit of a norm may turn a rounded code: the native engine has 56 dB in some passes.
        least = 50 if provider.rounds else 60
        differences = check_tokens(run(ReferenceDenoiser(model), loop), found, loop, least)
        statistics = session.statistics()
    tokens = sum(len(answer) for answer in found.answers)
    return {"tokens": tokens, "differences": len(differences)} | _ran_by(statistics)


def _ran_by(statistics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: statistics[name] for name in ("provider", "device") if name in statistics}


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "model": of_model,
    "pass": of_pass,
    "adapted": of_adapted,
    "generation": of_generation,
}


def main(what: str, folder: str, provider: str, *more: str) -> dict[str, Any]:
    """A case's results, and what was warned of."""
    own = PROVIDERS[provider]
    with warnings.catch_warnings(record=True) as caught, own.prepared():
        warnings.simplefilter("always")
        made = CASES[what](Path(folder), own, *more)
    return made | {"warnings": [str(each.message) for each in caught if each.category is RunsOnProcessor]}


def elsewhere(what: str, folder: Path, provider: str, *more: str) -> dict[str, Any]:
    """`main` in a process that has the provider. Skips the test where there is none."""
    environment = {**os.environ, **PROVIDERS[provider].environment()}
    done = subprocess.run(
        [sys.executable, "-m", "support.provider_cases", what, str(folder), provider, *more],
        env=environment, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # That a GPU's engine runs on the processor is no part of what a provider leaves to it.
    assert all("finds no CUDA GPU" in each for each in found["warnings"]), found["warnings"]
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
