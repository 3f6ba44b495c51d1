"""Ranges of activations from texts beside those from random tokens, in Qualcomm's emulation of its NPU (in
the folder tests):

    python -m support.qnn_ranges [MODEL...]

A shipped model is exported twice, its ranges from random tokens and from examples that it was trained on, and
runs on held-out examples, noised over the whole schedule. A line says how much wider the ranges of texts are
(least, median, most of all that goes in and out of matrices), how many reach beyond the random ones and their
margin, and the decibels of scores beside the reference with the same codes of weights and float activations:
the fewest of a pass, and those of all passes together.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from edgekit.export.calibrate.canvases import Canvas, Plan, canvases
from edgekit.export.calibrate.ranges import ProductRange, Range, collect
from edgekit.export.calibrate.texts import Text, Texts, samples
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.checkpoint.hub import resolve
from edgekit.export.formats.options import Packaging
from edgekit.export.formats.qnn.layout import MARGIN
from edgekit.export.models import architecture, complete
from edgekit.export.models.base import Architecture
from edgekit.export.pipeline import export
from edgekit.export.quantize import Scheme
from edgekit.runtime.sampling import Denoiser, HeadRequest
from edgekit.runtime.session import Session
from edgekit.runtime.tokenizer import Tokenizer
from edgekit.tools.tiny.tasks import examples
from support.bundles import quantized_reference
from support.qnn_bundles import options
from support.reference_denoiser import ReferenceDenoiser
from support.signal_to_noise import decibels

MODELS = ("tiny-llada", "tiny-block")
TASKS = ("addition", "sorting", "copying", "json", "story", "question")
SCHEME = Scheme("mixed4", 32)
#: Passes that are compared.
COUNT = 8


def texts(split: str, seed: int) -> Texts:
    """Examples of all tasks in turn, as chats."""
    each = zip(*(examples(task, 60, seed, split) for task in TASKS), strict=True)
    return Texts(split, [Text(one.prompt, one.answer) for row in each for one in row], split)


def wider(own: Mapping[str, ProductRange], other: Mapping[str, ProductRange]) -> tuple[str, int, int]:
    """How much, and how many of how many reach beyond the others and their margin."""

    def beyond(a: Range, b: Range) -> bool:
        return a.low < MARGIN * min(b.low, 0.0) or a.high > MARGIN * max(b.high, 0.0)

    pairs = [
        (getattr(r, of), getattr(other[name], of)) for name, r in own.items() for of in ("given", "made")
    ]
    ratios = [(a.high - a.low) / (b.high - b.low) for a, b in pairs]
    said = f"{min(ratios):.2f}, {np.median(ratios):.2f}, {max(ratios):.2f}"
    return said, sum(beyond(a, b) for a, b in pairs), len(pairs)


def scores(arch: Architecture, denoiser: Denoiser, made: Sequence[Canvas]) -> list[np.ndarray]:
    """Of every canvas."""
    found = []
    for own in made:
        denoiser.reset()
        ids = own.noised
        if arch.causal_prefix:
            denoiser.prefill(own.prompt.numpy())
        else:
            ids = torch.cat((own.prompt, own.noised))
        logits = denoiser.denoise(ids.numpy(), HeadRequest(logits=True)).logits
        assert logits is not None
        found.append(logits)
    return found


def compare(name: str) -> str:
    source = Checkpoint.open(resolve(name))
    arch = architecture(complete(source.config, source.names))
    tokenizer = Tokenizer.from_files(source.tokenizer, name)
    trained, held_out = (samples(texts(s, 1), tokenizer, arch.vocab_size) for s in ("train", "held-out"))
    ranges = [
        collect(arch, source, canvases(arch, plan, pieces))
        for plan, pieces in ((trained.plan, trained.pieces), (Plan(), None))
    ]
    said, beyond, count = wider(*ranges)
    made = list(canvases(arch, Plan(COUNT, short=()), held_out.pieces))
    model = quantized_reference(resolve(name), SCHEME, "qnn")
    expected = scores(arch, ReferenceDenoiser(model), made)
    cells = []
    for calibrate in (None, texts("train", 1)):
        with tempfile.TemporaryDirectory() as folder:
            cut = Packaging((0, 32) if arch.causal_prefix else (96,))
            export(resolve(name), Path(folder, "bundle"), options(SCHEME, cut, calibrate=calibrate))
            with Session(Path(folder, "bundle")) as session:
                found = scores(arch, session, made)
        each = [decibels(a, b) for a, b in zip(found, expected, strict=True)]
        whole = decibels(np.concatenate(found), np.concatenate(expected))
        cells.append(f"{min(each):.1f}, {whole:.1f}")
    return f"| {name} | {said} | {beyond} of {count} | {' | '.join(cells)} |"


def main() -> None:
    print("| | texts' ranges by random ones' | beyond their margin | random tokens | texts |")
    print("|---|---|---|---|---|")
    for name in sys.argv[1:] or MODELS:
        print(compare(name), flush=True)


if __name__ == "__main__":
    main()
