"""Golden results of the models that come with edgekit, by the reference:

python -m support.golden_reference      (in the folder tests) writes their files anew
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgekit.export.bundle_files import golden_name
from edgekit.export.checkpoint.hub import SHIPPED_MODELS, resolve
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.bundle.golden import Golden
from edgekit.runtime.generation import Generator
from edgekit.tools import golden
from support.bundles import quantized_reference
from support.loop_parity import Loop
from support.reference_denoiser import ReferenceDenoiser

#: Those that targets have by default.
SCHEMES = (Scheme("mixed4", 32), Scheme("mixed4", 64))


def golden_of(name: str, scheme: Scheme, bundle: Path) -> Golden:
    """The reference's results for a shipped model, whose bundle tells its sampler."""
    with Generator(bundle) as generator:
        opened: Bundle = generator.bundle
        prompt = golden.prompt(generator)
        options = generator.options(golden.settings(opened)).values()
        seed = golden.settings(opened).seed
    reference = ReferenceDenoiser(quantized_reference(resolve(name), scheme, "native"))
    events = Loop(opened.manifest.sampler, options, np.array(prompt), seed).run(reference)
    passes = [
        replace(p, log_z=[round(x, 5) for x in p.log_z], entropy=[round(x, 5) for x in p.entropy])
        for p in golden.passes(golden.inputs(opened, prompt), ReferenceDenoiser(reference.model))
    ]
    by = {"engine": "the reference in PyTorch, float32"}
    return Golden(passes, prompt, golden.tokens(events), by)


def main() -> None:
    """Write the files."""
    for name, scheme in itertools.product(SHIPPED_MODELS, SCHEMES):
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder, "bundle")
            export(resolve(name), bundle, ExportOptions("native", scheme=scheme))
            (resolve(name) / golden_name(scheme)).write_bytes(golden_of(name, scheme, bundle).dumps())


if __name__ == "__main__":
    main()
