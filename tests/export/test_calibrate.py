"""Ranges of activations: of the whole model at once, and layer by layer in the memory of one."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import write_checkpoint

from edgekit.export.calibrate.canvases import Canvas, Plan, canvases
from edgekit.export.calibrate.products import WatchedProducts
from edgekit.export.calibrate.ranges import ProductRange, Range, collect, side_by_side
from edgekit.export.calibrate.texts import MOST_PIECES, Text, Texts, samples
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.errors import ExportError
from edgekit.export.models import architecture, complete
from edgekit.export.models.base import Architecture
from edgekit.export.reference import ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.runtime.tokenizer import Tokenizer

PLAN = Plan(count=4, prompt=8, canvas=16, seed=3)
LONG = "The sky is blue because air scatters light of short waves more than that of long ones. " * 20
FAMILIES = ["llada", "dream", "nemotron_labs_diffusion", "sdar", "fast_dllm", "diffusion_gemma", "llada2_moe"]
#: Experts of a block: whole blocks of a text, and blocks that reach over its end.
BLOCKS = [{"expert_capacity": 5, "block_size": size, "num_hidden_layers": 3} for size in (8, 5)]


def opened(folder: Path, family: str, **overrides: object) -> tuple[Architecture, Checkpoint]:
    write_checkpoint(folder, family, **overrides)
    source = Checkpoint.open(folder)
    return architecture(complete(source.config, source.names)), source


@torch.no_grad()
def at_once(arch: Architecture, source: Checkpoint, texts: list[Canvas]) -> dict[str, ProductRange]:
    """The ranges that the whole model shows, run as it is run for an answer."""
    model = ReferenceModel(arch, load_float_weights(arch, source))
    values: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    matrices = {
        n.removesuffix(".weight"): w
        for n, w in model.weights().items()
        if n.startswith(("layers.", "self_conditioning.")) and w.ndim == 2
    }
    with WatchedProducts(matrices, lambda name, x, y: values.setdefault(name, []).append((x, y))):
        for text in texts:
            if arch.causal_prefix:
                kv = model.encode(text.prompt[None])
                soft = None if text.first else model.embed(text.clean[None]) / arch.embedding_scale
                model.hidden(text.noised[None], kv, soft if arch.self_conditioning is not None else None)
            else:
                model.hidden(torch.cat((text.prompt, text.noised))[None])

    def extent(tensors: list[torch.Tensor]) -> Range:
        return Range(min(float(t.min()) for t in tensors), max(float(t.max()) for t in tensors))

    return {
        name: ProductRange(extent([x for x, _ in seen]), extent([y for _, y in seen]))
        for name, seen in values.items()
    }


@pytest.mark.parametrize(
    "family,overrides", [*((family, {}) for family in FAMILIES), *(("llada2_moe", own) for own in BLOCKS)]
)
def test_ranges_are_those_of_the_whole_model(tmp_path: Path, family: str, overrides: dict[str, int]) -> None:
    arch, source = opened(tmp_path, family, **overrides)
    texts = list(canvases(arch, PLAN))
    told: list[str] = []
    found, expected = collect(arch, source, texts, told.append), at_once(arch, source, texts)
    assert found.keys() == expected.keys() and f"layers.{len(arch.layers) - 1}.self_attn.q_proj" in found
    for name, own in found.items():
        for part in ("given", "made"):
            a, b = getattr(own, part), getattr(expected[name], part)
            assert a.low < a.high, name
            np.testing.assert_allclose([a.low, a.high], [b.low, b.high], rtol=1e-5, err_msg=f"{name} {part}")
    first = ["self_conditioning"] if arch.self_conditioning is not None else []
    assert told == [*first, *(f"layers.{i}" for i in range(len(arch.layers)))]


@pytest.mark.parametrize("block,groups", [(8, [4]), (5, [1, 1, 1, 1])])
def test_blocks_that_choose_experts_are_of_one_text(tmp_path: Path, block: int, groups: list[int]) -> None:
    arch, _ = opened(tmp_path, "llada2_moe", expert_capacity=5, block_size=block)
    assert [len(own) for own in side_by_side(arch, canvases(arch, replace(PLAN, short=())))] == groups


class Counted:
    """A source that counts the bytes of what it gave and what is still held."""

    def __init__(self, source: Checkpoint) -> None:
        self.source, self.held, self.most = source, 0, 0

    def _counted(self, array: np.ndarray) -> np.ndarray:
        nbytes = array.nbytes
        self.held += nbytes
        self.most = max(self.most, self.held)
        weakref.finalize(array, self._gone, nbytes)
        return array

    def _gone(self, nbytes: int) -> None:
        self.held -= nbytes

    def read(self, name: str) -> np.ndarray:
        return self._counted(self.source.read(name))

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        return self._counted(self.source.read_slice(name, start, stop))


def test_memory_holds_the_weights_of_one_layer(tmp_path: Path) -> None:
    arch, source = opened(tmp_path, "llada", n_layers=6)
    layer = sum(4 * int(np.prod(spec.shape)) for spec in arch.layers[0].weights)
    counted = Counted(source)
    collect(arch, counted, canvases(arch, PLAN))
    assert layer <= counted.most <= 2.1 * layer, "one runs, the next may be read before it goes"
    assert counted.held == 0


def test_a_seed_decides_which_texts(tmp_path: Path) -> None:
    arch, source = opened(tmp_path, "llada")
    one = collect(arch, source, canvases(arch, PLAN))
    assert one == collect(arch, source, canvases(arch, PLAN))
    assert one != collect(arch, source, canvases(arch, Plan(4, 8, 16, seed=4)))


def test_noise_goes_from_all_tokens_to_none(tmp_path: Path) -> None:
    arch, _ = opened(tmp_path, "llada")
    made = list(canvases(arch, Plan(5, 4, 16, short=())))
    mask = arch.defaults["mask_token_id"]
    assert [int((c.noised == mask).sum()) for c in made] == [16, 12, 8, 4, 0]
    assert all((c.noised == c.clean)[c.noised != mask].all() for c in made)
    assert [c.first for c in made] == [True, False, True, False, True]


def test_noise_is_any_token_where_a_model_has_no_mask(tmp_path: Path) -> None:
    arch, _ = opened(tmp_path, "diffusion_gemma")
    made = list(canvases(arch, Plan(5, 4, 64, short=())))
    changed = [int((c.noised != c.clean).sum()) for c in made]
    assert changed[0] > 60 and changed == sorted(changed, reverse=True) and changed[-1] == 0
    assert len(set(made[0].noised.tolist())) > 40


def test_texts_are_taken_in_turn(tmp_path: Path) -> None:
    arch, _ = opened(tmp_path, "llada")
    texts = [torch.arange(10), torch.arange(10, 20)]
    made = list(canvases(arch, Plan(3, 4, 6, short=()), texts))
    assert [int(c.prompt[0]) for c in made] == [0, 10, 0]
    assert torch.equal(made[1].clean, torch.arange(14, 20))
    with pytest.raises(ExportError, match="a text has 10 tokens, prompt and canvas take 11"):
        list(canvases(arch, Plan(3, 4, 7), texts))


def test_short_passes_come_behind_those_of_whole_texts(tmp_path: Path) -> None:
    """Long passes alone do not show how far values of short ones reach."""
    arch, source = opened(tmp_path, "llada")
    texts = [torch.arange(10), torch.arange(10, 20)]
    long, both = (list(canvases(arch, Plan(3, 4, 6, short=s), texts)) for s in ((), (2, 5)))
    assert [(len(c.prompt), len(c.noised)) for c in both[3:]] == [(1, 1)] * 64 + [(2, 3)] * 25
    assert all(torch.equal(a.noised, b.noised) for a, b in zip(long, both, strict=False))
    mask = arch.defaults["mask_token_id"]
    assert (both[67].noised == mask).all() and torch.equal(both[-1].noised, both[-1].clean)
    pieces = [int(torch.cat((c.prompt, c.clean))[0]) for c in both[67:]]
    assert pieces[:12] == [0, 10, 5, 15, 4, 14, 3, 13, 2, 12, 1, 11] and len(set(pieces)) == 12
    found, less = collect(arch, source, both), collect(arch, source, long)
    for name, own in found.items():
        for a, b in ((own.given, less[name].given), (own.made, less[name].made)):
            assert a.low <= b.low and a.high >= b.high, name
    assert found != less


@pytest.mark.parametrize("family", ["llada", "dream", "diffusion_gemma"])
def test_pieces_of_texts_are_noised_over_the_whole_schedule(tmp_path: Path, family: str) -> None:
    arch, source = opened(tmp_path, family)
    said = samples(Texts.of("mine", [LONG]), Tokenizer.from_files(source.tokenizer, "here"), arch.vocab_size)
    plan = replace(said.plan, short=())
    made = list(canvases(arch, plan, said.pieces))
    mask, steps = arch.defaults.get("mask_token_id"), range(plan.count)
    noisy = [round(plan.canvas * (1 - i / (plan.count - 1))) for i in steps]
    for own, count in zip(made, noisy, strict=True):
        assert any(torch.equal(torch.cat((own.prompt, own.clean)), piece) for piece in said.pieces)
        changed = own.noised != own.clean
        if mask is None:  # a random token may be the one that was there
            assert count - 4 <= int(changed.sum()) <= count
        else:
            assert int(changed.sum()) == count and bool((own.noised[changed] == mask).all())
    assert noisy[0] == plan.canvas and noisy[-1] == 0 and len(set(noisy)) >= 16
    if mask is None:
        noise = torch.cat([own.noised[own.noised != own.clean] for own in made])
        assert len(set(noise.tolist())) > arch.vocab_size / 2, "any token is noise"
    first = [own.first for own in made]
    assert first == [i % 2 == 0 for i in steps]


def test_texts_are_encoded_as_prompts_are(tmp_path: Path) -> None:
    arch, source = opened(tmp_path, "llada")
    tokenizer = Tokenizer.from_files(source.tokenizer, "here")
    messages = [{"role": "user", "content": LONG}]
    for text, ids in (
        (Text(LONG), tokenizer.chat(messages)),
        (Text(messages), tokenizer.chat(messages)),
        (Text(LONG, raw=True), tokenizer.encode(LONG)),
        (
            Text(LONG, "Yes."),
            tokenizer.chat(
                [*messages, {"role": "assistant", "content": "Yes."}], add_generation_prompt=False
            ),
        ),
    ):
        found = samples(Texts("mine", [text], ""), tokenizer, arch.vocab_size)
        count = len(ids) // 96
        assert sorted(p.tolist() for p in found.pieces) == sorted(
            ids[i * 96 : (i + 1) * 96] for i in range(count)
        )
        assert found.facts == {"file": "mine", "sha256": "", "texts": 1, "tokens": 96 * count}


def test_texts_are_bounded_and_packed(tmp_path: Path) -> None:
    arch, source = opened(tmp_path, "llada")
    tokenizer = Tokenizer.from_files(source.tokenizer, "here")
    found = samples(Texts.of("mine", ["What is a sky?"] * 9000), tokenizer, arch.vocab_size)
    each = len(tokenizer.chat([{"role": "user", "content": "What is a sky?"}]))
    assert len(found.pieces) == MOST_PIECES == found.plan.count
    assert found.facts["tokens"] == 96 * MOST_PIECES and found.facts["texts"] == -(-96 * MOST_PIECES // each)
    endless = samples(Texts("mine", [Text(LONG * 5000, raw=True)], ""), tokenizer, arch.vocab_size)
    assert len(endless.pieces) == MOST_PIECES
    with pytest.raises(
        ExportError, match="^mine: has [0-9]+ tokens, and ranges of activations take at least 96"
    ):
        samples(Texts.of("mine", ["Hi"]), tokenizer, arch.vocab_size)
    with pytest.raises(ExportError, match="^mine: text 2: "):
        samples(Texts.of("mine", ["Hi", [{"role": "nobody", "content": "x"}]]), tokenizer, arch.vocab_size)


def test_a_plan_that_is_none_is_refused() -> None:
    with pytest.raises(ExportError, match="calibration on 1 canvases of 4 tokens behind 3 is not possible"):
        Plan(1, 3, 4)
