"""Tokens stay what they are, whatever is done to engines, residency and samplers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support import golden_tokens
from support.golden_tokens import Case, cases

CASES = list(cases())
#: Formats whose engines decide alike.
ALIKE = ("native", "onnx", "mlx")
TOKENS = json.loads(golden_tokens.KEPT.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, shipped_bundle: Callable[..., Path]
) -> Callable[[Case], Path]:
    """The bundle of a case, made when it is first asked for. Read only."""
    made: dict[str, Path] = {}

    def of(case: Case) -> Path:
        if case.model.startswith("tiny-"):
            return shipped_bundle(case.model, case.format)
        if case.model not in made:
            folder = tmp_path_factory.mktemp(case.model)
            made[case.model] = golden_tokens.family_bundle(folder, case.model)
        return made[case.model]

    return of


def test_every_case_is_kept() -> None:
    assert list(TOKENS) == [case.name for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tokens_are_those_that_are_kept(bundle: Callable[[Case], Path], case: Case) -> None:
    assert case.tokens(bundle(case)) == TOKENS[case.name]


@pytest.mark.parametrize("model", golden_tokens.TRAINED)
def test_trained_models_answer_alike_on_every_engine(model: str) -> None:
    """Native, ONNX and MLX multiply the same integers."""
    kept = [TOKENS[case.name] for case in CASES if case.model == model and case.format in ALIKE]
    assert len(kept) == len(ALIKE) * len(golden_tokens.RESIDENT)
    assert all(tokens == kept[0] for tokens in kept)
