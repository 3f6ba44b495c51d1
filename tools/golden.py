"""Golden results of a bundle: the passes and answer that they are of, and how far others are from them.

The passes are what a model does: a canvas of random tokens alone, another one behind a prompt, and there the
step after it with self-conditioning; or where a model opens masks, those behind a prompt.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from edgekit.flashload import manifest as manifests
from edgekit.flashload.files import fsync_directory, write_atomic, write_failed
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.golden import GOLDEN_FILE, Golden, Pass, loads
from edgekit.runtime.generation import Generator, Settings
from edgekit.runtime.sampling import Committed, Denoiser, Event, HeadRequest

#: What the tiny models know, and others have an answer to.
_PROMPT = "Write as JSON: name: Ada; age: 31; city: Rome"
#: Positions of canvases and answers where the model has no length of its own.
_CANVAS = 32
_STEPS, _SEED = 8, 1
#: Decibels of the scores from which on differences are those of precision: what is unrelated has none, and
#: activations in 8 bits, on canvases without sense, have 19 to 40.
CLOSE = 10.0
#: Of rows, at least, with the same most probable token.
_ALIKE = 0.5


@dataclass(frozen=True)
class Comparison:
    """How far results are from golden ones: the share of rows with the same most probable token, decibels of
    log_z and entropy (their variance over the squared difference; infinite where they are equal, minus
    infinity where they are not numbers), and whether the answers are the same.
    """

    same_argmax: float
    decibels: float
    same_tokens: bool

    @property
    def verdict(self) -> str:
        """`equal`, `close` (as another precision is), or `different`."""
        if self.decibels < CLOSE or self.same_argmax < _ALIKE:
            return "different"
        return "equal" if self.same_argmax == 1 and self.same_tokens else "close"


def canvas_of(bundle: Bundle) -> int:
    """Positions of a canvas of the golden passes: those of the model's canvas or block, if it has one."""
    own = bundle.manifest.sampler["config"].get("block_length") if bundle.model.causal_prefix else None
    return bundle.model.canvas_length or own or _CANVAS


def inputs(bundle: Bundle, prompt: list[int]) -> list[Pass]:
    """The passes, without results, for results that are recorded."""
    rng, model, length = np.random.default_rng(0), bundle.model, canvas_of(bundle)
    drawn = [rng.integers(0, model.vocab_size, length).tolist() for _ in range(3)]
    alone = Pass([], drawn[0])
    mask = bundle.manifest.sampler["config"].get("mask_token_id")
    canvas = drawn[1] if mask is None else [int(mask)] * length
    if not model.causal_prefix:
        return [alone, Pass([], [*prompt, *canvas])]
    behind = [Pass(prompt, canvas)]
    if model.self_conditioning:
        behind.append(Pass(prompt, drawn[2], soft=True))
    return [alone, *behind]


def passes(wanted: list[Pass], denoiser: Denoiser) -> list[Pass]:
    """These passes with their results. Forgets what the denoiser keeps."""
    found, soft = list[Pass](), None
    for number, each in enumerate(wanted):
        if not each.soft:
            denoiser.reset()
            if each.prefix:
                denoiser.prefill(np.array(each.prefix))
        request = HeadRequest(soft=number + 1 < len(wanted) and wanted[number + 1].soft)
        out = denoiser.denoise(np.array(each.canvas), request, soft if each.soft else None)
        soft = out.soft
        argmax, log_z, entropy = (values.tolist() for values in (out.argmax, out.log_z, out.entropy))
        found.append(replace(each, argmax=argmax, log_z=log_z, entropy=entropy))
    denoiser.reset()
    return found


def prompt(generator: Generator) -> list[int]:
    """The ids of the prompt, for results that are recorded."""
    return generator.encode(_PROMPT)


def settings(bundle: Bundle) -> Settings:
    """Those of the answer: one canvas, in few steps."""
    return Settings(max_new_tokens=canvas_of(bundle), steps=_STEPS, seed=_SEED)


def tokens(events: Iterable[Event]) -> list[int]:
    """The tokens of an answer."""
    return [int(token) for event in events if isinstance(event, Committed) for token in event.ids]


def compare(found: Golden, golden: Golden) -> Comparison:
    """Results beside golden ones, which are of the same passes. The error of the worst pass counts, beside
    the spread over the rows of all: in one alone a sure model's entropies hardly differ.
    """
    pairs = list(zip(found.passes, golden.passes, strict=True))
    same = [a == b for own, other in pairs for a, b in zip(own.argmax, other.argmax, strict=True)]
    worst = math.inf
    for name in ("log_z", "entropy"):
        power = statistics.pvariance(value for other in golden.passes for value in getattr(other, name))
        for own, other in pairs:
            worst = min(worst, _decibels(getattr(own, name), getattr(other, name), power))
    return Comparison(sum(same) / len(same), worst, found.tokens == golden.tokens)


def _decibels(found: list[float], expected: list[float], power: float) -> float:
    if not all(map(math.isfinite, found)):
        return -math.inf
    try:
        error = statistics.fmean((a - b) ** 2 for a, b in zip(found, expected, strict=True))
    except OverflowError:
        return -math.inf
    return math.inf if error == 0 else 10 * math.log10(power / error) if power else -math.inf


def read(bundle: Bundle) -> Golden | None:
    """The golden results of a bundle; None if it has none. Raises MalformedFile and those of reading."""
    if GOLDEN_FILE not in bundle.manifest.files:
        return None
    return loads(bundle.folder.read(GOLDEN_FILE), str(bundle.path / GOLDEN_FILE))


def record(folder: Path, golden: Golden) -> None:
    """Write golden.json into a bundle, and list it in its manifest: both are on the disk before either takes
    the place of another. Raises EdgekitError; the bundle is then as it was.
    """
    manifest = manifests.load(folder)
    with TemporaryDirectory(prefix=".golden-", dir=folder) as made:
        file, listed = Path(made, GOLDEN_FILE), Path(made, "manifest")
        write_atomic(file, golden.dumps())
        files = {**manifest.files, GOLDEN_FILE: manifests.file_entry(file)}
        write_atomic(listed, manifests.dumps(replace(manifest, files=files)))
        try:
            os.replace(file, folder / GOLDEN_FILE)
            os.replace(listed, manifests.manifest_path(folder))
        except OSError as error:
            raise write_failed(f"{folder}: cannot record golden results", error) from error
        fsync_directory(folder)
