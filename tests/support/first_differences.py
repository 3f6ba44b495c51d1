"""Finding where half precision answers a shipped model's held-out prompts in another way than the reference,
and why.

    PYTHONPATH=tests python -m support.first_differences tiny-llada --seeds 8

exports the model's Core ML packages in float16, evaluates them, and runs one prompt of every task and seed
beside the reference. Of each answer that differs it prints the decisions after which the loops part, and
whether the same packages computed in float32 answer as the reference does. Takes about 7 seconds a prompt.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch

from edgekit.export.checkpoint.hub import resolve
from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.generation import Generator
from edgekit.runtime.session import Session
from edgekit.tools.tiny.tasks import TASKS, draw
from support import bundles
from support.loop_parity import SETTINGS, check_tokens, prompt_loop, run
from support.reference_denoiser import ReferenceDenoiser

LENGTHS = {"tiny-gemma": (48, 300), "tiny-llada": (96, 112)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=LENGTHS)
    parser.add_argument("--seeds", type=int, default=8, help="prompts of each task")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint, scheme = resolve(arguments.model), Scheme("mixed4", 32)
    prompts = decided = answered = 0
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        cut = Packaging(LENGTHS[arguments.model])
        export(checkpoint, bundle, ExportOptions("coreml", "ios", scheme, precision="float16", packaging=cut))
        reference = ReferenceDenoiser(bundles.quantized_reference(checkpoint, scheme, "coreml"))
        with (
            Generator(bundle) as generator,
            Session(bundle, executor=MilExecutor()) as half,
            Session(bundle, executor=MilExecutor("float32")) as wide,
        ):
            for seed in range(arguments.seeds):
                for task in TASKS:
                    prompt = draw(task, random.Random(f"{task} {seed}"), "held-out").prompt
                    loop = prompt_loop(generator, prompt, SETTINGS[arguments.model])
                    expected, found = run(reference, loop), run(half, loop)
                    turned = check_tokens(expected, found, loop)
                    prompts, decided = prompts + 1, decided + bool(turned)
                    if expected.answers == found.answers:
                        continue
                    answered += 1
                    print(f"{task} {seed}: {prompt}")
                    print(*(f"  {d}" for d in turned if d.number == turned[-1].number), sep="\n")
                    same = run(wide, loop).answers == expected.answers
                    print(f"  computed in float32: {'the' if same else 'not the'} reference's answer")
    print(f"{prompts} prompts: {decided} with another decision, {answered} with another answer")


if __name__ == "__main__":
    main()
