"""Passes and generations of the engine `onnx-gpu`, also in a process that has ONNX Runtime with WebGPU:

    python -m support.webgpu_cases pass FOLDER PRESET GROUP_SIZE [streamed]
    python -m support.webgpu_cases adapted FOLDER PRESET GROUP_SIZE RANK
    python -m support.webgpu_cases generation FOLDER MODEL

A folder holds a bundle, and the checkpoint that it is of where no model that comes with edgekit is named.
Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.quantize import Scheme
from edgekit.runtime.errors import RunsOnProcessor
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.session import SessionOptions, open_session
from support.bundles import passes, quantized_reference
from support.loop_parity import check_tokens, prompt_loop, run
from support.low_rank import use_adapters
from support.reference_denoiser import ReferenceDenoiser


def of_pass(folder: Path, preset: str, group_size: str, how: str = "kept") -> dict[str, Any]:
    """How far the logits are from the reference's, relative to the largest, with weights kept or streamed."""
    model = quantized_reference(folder / "checkpoint", Scheme(preset, int(group_size)), "onnx-gpu")
    with open_session(
        folder / "bundle", SessionOptions(resident_bytes=0 if how == "streamed" else None)
    ) as session:
        found, expected = passes(session, model)
        statistics = session.statistics()
    assert found.logits is not None
    wanted = expected.numpy()
    error = float(np.abs(found.logits - wanted).max() / np.abs(wanted).max())
    return {"error": error, "provider": statistics["provider"], "read": statistics["bytes_read"]}


def of_adapted(folder: Path, preset: str, group_size: str, rank: str) -> dict[str, Any]:
    """`of_pass` of a model whose layers have low-rank adapters."""
    with pytest.MonkeyPatch.context() as patch:
        use_adapters(patch, int(rank))
        return of_pass(folder, preset, group_size)


def of_generation(folder: Path, name: str) -> dict[str, Any]:
    """Tokens that differ from the reference's, between what is nearly equal. Raises AssertionError for
    others.
    """
    model = quantized_reference(resolve(name), Scheme("mixed4", 32), "onnx-gpu")
    with Generator(folder / "bundle") as generator:
        loop = prompt_loop(generator, "12 + 34 =", Settings(max_new_tokens=16, steps=3, seed=3))
    with open_session(folder / "bundle") as session:
        differences = check_tokens(run(ReferenceDenoiser(model), loop), run(session, loop), loop, 60)
        return {"differences": len(differences), "provider": session.statistics()["provider"]}


def main(what: str, folder: str, *more: str) -> dict[str, Any]:
    """A case's results, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = {"pass": of_pass, "adapted": of_adapted, "generation": of_generation}[what](
            Path(folder), *more
        )
    return made | {"warnings": [str(each.message) for each in caught if each.category is RunsOnProcessor]}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
