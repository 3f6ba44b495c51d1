"""The trained tiny models, exported to packages and run from prompt to text: Core ML's by the evaluator, Core
AI's by its runtime. The tokens are those of the PyTorch reference that holds the same codes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support import bundles
from support.loop_parity import SETTINGS, check_tokens, prompt_loop, run
from support.reference_denoiser import ReferenceDenoiser

from edgekit.export.formats.options import Packaging
from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.export.reference import ReferenceModel
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.checks.mil_executor import MilExecutor
from edgekit.runtime.engines.base import Executor
from edgekit.runtime.generation import Generator
from edgekit.runtime.sampling import Committed, HeadRequest
from edgekit.runtime.session import Session
from edgekit.tools.tiny.tasks import draw

TINY = Path(bundles.__file__).parents[2] / "tools" / "tiny"
SCHEME = Scheme("mixed4", 32)
#: Lengths that no prompt fits exactly, and chunks across kinds of layers.
PACKAGING = {"tiny-gemma": Packaging((48, 300), layers_per_chunk=4), "tiny-llada": Packaging((96, 112))}
Exported = tuple[str, Path, ReferenceModel]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors are tiny: threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def exported(
    name: str,
    program_format: str,
    precision: str,
    folder: Path,
    scheme: Scheme = SCHEME,
    activations: str | None = None,
) -> Exported:
    options = ExportOptions(
        program_format, "ios", scheme, precision=precision, packaging=PACKAGING[name], activations=activations
    )
    export(TINY / name, folder / name, options)
    return name, folder / name, bundles.quantized_reference(TINY / name, scheme, program_format)


@pytest.fixture(
    scope="module",
    params=[(n, p) for n in PACKAGING for p in ("float32", "float16")],
    ids=lambda p: "-".join(p),
)
def coreml(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    pytest.importorskip("coremltools")
    name, precision = request.param
    return exported(name, "coreml", precision, tmp_path_factory.mktemp("coreml"))


def check(case: Exported, tasks: list[str], executor: Executor | None, resident: int | None) -> int:
    """Answers to one prompt of each task; returns how many of them were right."""
    name, bundle, model = case
    right = 0
    with Generator(bundle, executor=executor, resident_bytes=resident) as generator:
        for task in tasks:
            example = draw(task, random.Random(f"{task} {name}"), "held-out")
            events = generator.generate(example.prompt, SETTINGS[name])
            found = [int(i) for e in events if isinstance(e, Committed) for i in e.ids]
            loop = prompt_loop(generator, example.prompt, SETTINGS[name])
            reference = run(ReferenceDenoiser(model), loop)
            if found != list(itertools.chain(*reference.answers)):
                turned = check_tokens(reference, run(generator.session, loop), loop)
                raise AssertionError(f"{task}: another answer\n" + "\n".join(map(str, turned)))
            right += example.check(generator.tokenizer.decode(found))
    return right


def test_core_ml_generates_what_the_reference_generates(coreml: Exported) -> None:
    packages = Bundle.open(coreml[1]).packages
    assert packages is not None
    tasks = ["copying"] if packages.precision == "float32" else ["copying", "question"]
    assert check(coreml, tasks, MilExecutor(), None) >= 1


def test_core_ml_scores_are_those_of_the_reference(coreml: Exported) -> None:
    """A canvas of random tokens, where nothing is sure. Another token comes out only where the reference's
    best two are as close as half precision is to it.
    """
    name, bundle, model = coreml
    packages = Bundle.open(bundle).packages
    assert packages is not None
    rng = np.random.default_rng(5)
    prompt, canvas = rng.integers(16, 512, 41), rng.integers(16, 512, 90)
    reference = ReferenceDenoiser(model)
    request = HeadRequest(temperature=0.8, logits=True)
    with Session(bundle, executor=MilExecutor()) as session:
        for denoiser in (session, reference):
            if model.architecture.causal_prefix:
                denoiser.prefill(prompt)
        found = session.denoise(canvas, request)
    expected = reference.denoise(canvas, request)
    assert found.logits is not None and expected.logits is not None
    error = np.abs(found.logits - expected.logits).max(1)
    scale = expected.logits.std(1)
    if packages.precision == "float32":
        assert (error < 1e-3 * scale).all()
    else:
        # A position whose router was undecided may take other experts; few are.
        assert np.median(error / scale) < 0.05
    best = np.sort(expected.logits, 1)[:, -2:]
    sure = best[:, 1] - best[:, 0] > 2 * error
    np.testing.assert_array_equal(found.argmax[sure], expected.argmax[sure])
    assert sure.mean() > 0.9


@pytest.mark.parametrize("coreml", [("tiny-llada", "float16")], ids="-".join, indirect=True)
def test_another_answer_in_float16_comes_from_what_is_nearly_equal(coreml: Exported) -> None:
    """A prompt for which half precision finds another answer: positions of which the model is sure are
    unmasked in another order. The same packages, computed in float32, give the reference's.
    """
    name, bundle, model = coreml
    example = draw("addition", random.Random("addition 0"), "held-out")
    with Generator(bundle) as generator:
        loop = prompt_loop(generator, example.prompt, SETTINGS[name])
    reference = run(ReferenceDenoiser(model), loop)
    answers = {}
    for compute in ("declared", "float32"):
        with Session(bundle, executor=MilExecutor(compute)) as session:
            found = run(session, loop)
        turned = check_tokens(reference, found, loop, 50)
        assert all(d.margin < 1e-3 for d in turned)
        answers[compute] = found.answers
    assert answers["float32"] == reference.answers


@pytest.mark.parametrize("name", PACKAGING)
@pytest.mark.parametrize(
    ("precision", "resident", "tasks"),
    [("float32", 0, ["copying"]), ("float16", None, ["copying", "json", "question"])],
)
def test_core_ai_generates_what_the_reference_generates(
    name: str, precision: str, resident: int | None, tasks: list[str], tmp_path: Path
) -> None:
    """By its own runtime; with nothing resident every package is loaded in every pass."""
    pytest.importorskip("coreai.authoring")
    case = exported(name, "coreai", precision, tmp_path)
    assert check(case, tasks, None, resident) >= 1


@pytest.mark.parametrize("name", PACKAGING)
@pytest.mark.parametrize(
    ("program_format", "precision", "tasks"),
    [("coreml", "float16", ["json"]), ("coreai", "float32", ["json", "question"])],
)
def test_int8_activations_answer_right(
    name: str, program_format: str, precision: str, tasks: list[str], tmp_path: Path
) -> None:
    """Weights and activations in 8 bits: the tokens of the reference that rounds as the packages do."""
    pytest.importorskip({"coreml": "coremltools", "coreai": "coreai.authoring"}[program_format])
    case = exported(name, program_format, precision, tmp_path, Scheme("int8"), "int8")
    executor = MilExecutor() if program_format == "coreml" else None
    with bundles.int8_activations():
        assert check(case, tasks, executor, None) == len(tasks)
