"""Labels of roles, and the trainer of role heads."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from edgekit.export.models import architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.role_head import FILE, read_role_head
from edgekit.runtime.sampling.types import ROLES
from edgekit.tools.tiny import roles, tokenizer
from edgekit.tools.tiny.corpus import Encoder
from edgekit.tools.tiny.models import LLADA_CONFIG
from edgekit.tools.tiny.tasks import Example, draw
from edgekit.tools.train_roles import Features, main, measured, trained

TINY = Path(tokenizer.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums are in one order, and models this small cost less than waking threads for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def labelled(task: str, answer: str) -> list[tuple[str, str]]:
    """Tokens of an answer with their roles, and one position more."""
    encoder, example = Encoder("llada"), Example(task, "", answer, "", answer.__eq__)
    spans = encoder.spans(answer)
    found = roles.token_roles(example, spans, len(spans) + 2)
    assert [example.answer[a:b] for a, b in spans] == [
        encoder.text([i]) for i in encoder.prompts([answer])[0]
    ]
    texts = [*(answer[a:b].strip() for a, b in spans), "", ""]
    return [(text, ROLES[role]) for text, role in zip(texts, found, strict=True)]


def test_a_chain_has_names_and_values() -> None:
    assert labelled("chain", "a = 2, b = 4, c = 4") == [
        ("a", "premise"), ("=", "connective"), ("2", "premise"), (",", "connective"),
        ("b", "premise"), ("=", "connective"), ("4", "derived"), (",", "connective"),
        ("c", "premise"), ("=", "connective"), ("4", "conclusion"), ("", "filler"), ("", "filler"),
    ]  # fmt: skip


def test_a_sorted_list_has_words() -> None:
    assert labelled("short-sorting", "Ben black corn Ida") == [
        ("Ben", "premise"), ("black", "derived"), ("corn", "derived"), ("Ida", "conclusion"),
        ("", "filler"), ("", "filler"),
    ]  # fmt: skip


@pytest.mark.parametrize("task", roles.SHARES)
def test_every_answer_begins_with_one_premise_and_ends_with_one_conclusion(task: str) -> None:
    rng = random.Random(task)
    for _ in range(20):
        example = draw(task, rng)
        found = [role for _, role in labelled(task, example.answer)]
        assert found[0] == "premise" and found.count("conclusion") == 1
        last = max(i for i, role in enumerate(found) if role != "filler")
        assert found[last] == "conclusion"


def small() -> Features:
    """A random model of one layer and the shipped shape, over short canvases."""
    own = architecture(LLADA_CONFIG | {"n_layers": 1, "max_sequence_length": 512}, "float32")
    model = ReferenceModel.random(own, 0, std=0.15).requires_grad_(False)
    return Features(model, Encoder("llada"), canvas=64)


def test_a_head_learns_and_equal_seeds_give_equal_bytes() -> None:
    losses: list[float] = []
    heads = [trained(small(), 24, 6, seed, lambda _, loss: losses.append(loss)) for seed in (0, 0, 1)]
    assert heads[0].digest == heads[1].digest != heads[2].digest
    assert losses[:24] == losses[24:48] and np.mean(losses[16:24]) < 0.9 * losses[0]
    found = measured(small(), heads[0], 8, seed=0)
    assert [each.role for each in found] == list(ROLES) and all(each.count for each in found)


def test_hidden_states_are_those_of_masked_positions_and_of_the_token_they_predict() -> None:
    """A shifted model's row is the one before."""
    plain = small()
    chosen = [draw("short-chain", random.Random(i)) for i in range(3)]
    x, labels, weights = plain(chosen, torch.Generator().manual_seed(1))
    inputs, wanted = plain.batch(chosen)
    masked, _, _ = plain.objective.masks(inputs, torch.Generator().manual_seed(1))
    torch.testing.assert_close(labels, wanted[masked])
    assert len(x) == len(labels) == len(weights) == int(masked.sum()) > 20
    plain.ahead = 1
    shifted, _, _ = plain(chosen, torch.Generator().manual_seed(1))
    hidden = plain.objective.hidden(inputs, inputs.answer.masked_fill(masked, tokenizer.MDM_MASK))
    rows = [hidden[i, -65:-1][masked[i]] for i in range(len(chosen))]
    torch.testing.assert_close(shifted, torch.cat(rows))


def test_the_command_writes_a_head_that_exports_take(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY / "tiny-llada", model)
    words = [str(model), "--steps", "2", "--rows", "2", "--per-task", "2", "--threads", "1", "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["role"] for row in rows] == list(ROLES) and all(0 <= row["right"] <= 1 for row in rows)
    found = read_role_head(model, 192)
    assert found is not None and found.width == 48
    elsewhere = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out")])
    assert elsewhere.exit_code == 0
    assert (tmp_path / "out" / FILE).read_bytes() == (model / FILE).read_bytes()


def test_a_model_without_masks_is_refused() -> None:
    result = CliRunner().invoke(main, [str(TINY / "tiny-gemma"), "--out", "nowhere"])
    assert result.exit_code == 1 and "is decoded by diffusion_gemma" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
