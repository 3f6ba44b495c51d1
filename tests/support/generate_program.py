"""`tests/native/generate.c`, a program of the C ABI, run on other systems: what it is asked, and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import golden_tokens
from support.golden_tokens import Case

SOURCE = Path(__file__).parents[1] / "native" / "generate.c"
UNLIMITED = 2**64 - 1


@dataclass(frozen=True)
class Asked:
    """One generation of generate.c. `canvas` and `positions` matter under a memory budget alone."""

    bundle: str
    prompt: list[int]
    seed: int = 0
    max_new_tokens: int = 0
    steps: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0
    resident_bytes: int = UNLIMITED
    positions: int = 64
    canvas: int = 256

    def lines(self) -> str:
        return (
            f"{self.bundle}\n2 {self.memory_bytes} {self.resident_bytes} {self.positions} {self.canvas}\n"
            f"{self.seed} {self.max_new_tokens} {self.steps}\n{json.dumps(self.options)}\n"
            f"{' '.join(map(str, self.prompt))}\n"
        )


@dataclass(frozen=True)
class Answer:
    """Tokens and statistics, or the status, text and enough memory of a refusal."""

    tokens: list[int]
    statistics: dict[str, str]
    status: int = 0
    enough_bytes: int = 0
    message: str = ""

    @classmethod
    def parse(cls, text: str) -> Answer:
        if text.startswith("error "):
            _, status, enough, message = text.split(" ", 3)
            return cls([], {}, int(status), int(enough), message)
        tokens, *rest = text.split("\n")
        return cls(list(map(int, tokens.split())), dict(line.split(" ", 1) for line in rest))


def lines(asked: list[Asked]) -> str:
    """The program's input."""
    return "".join(each.lines() for each in asked)


def answers(output: str, count: int) -> list[Answer]:
    """The program's output."""
    found = [Answer.parse(part) for part in output.removesuffix("\n\n").split("\n\n")]
    assert len(found) == count
    return found


def check_golden_tokens(
    generate: Callable[[list[Asked]], list[Answer]],
    folder: Path,
    there: Callable[[Path], str] = str,
    *,
    every: bool,
) -> None:
    """Every family answers with its golden tokens; one case of each, or `every` one. `folder` is for bundles,
    `there` says how programs of the system see a path.
    """
    kept = json.loads(golden_tokens.KEPT.read_text(encoding="utf-8"))
    part = "" if every else "-0-streamed"
    cases = [c for c in golden_tokens.cases() if not c.model.startswith("tiny-") and c.name.endswith(part)]
    assert {case.model for case in cases} == {
        "diffusion_gemma", "llada", "llada_moe", "dream", "fast_dllm", "nemotron_labs_diffusion"
    }  # fmt: skip
    bundles: dict[str, Path] = {}
    for model in dict.fromkeys(case.model for case in cases):
        (folder / model).mkdir()
        bundles[model] = golden_tokens.family_bundle(folder / model, model)

    def asked(case: Case) -> Asked:
        held = UNLIMITED if case.resident_bytes is None else case.resident_bytes
        return Asked(there(bundles[case.model]), golden_tokens.PROMPT, resident_bytes=held, **case.settings)

    found = generate([asked(case) for case in cases])
    assert {case.name: answer.tokens for case, answer in zip(cases, found, strict=True)} == {
        case.name: kept[case.name] for case in cases
    }
