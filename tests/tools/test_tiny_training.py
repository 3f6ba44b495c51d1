"""Training and measuring the tiny models: faster operators, padding, objectives, and the batched sampling
loops."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.fake_denoiser import head

from edgekit.export import ops
from edgekit.export.checkpoint import Checkpoint
from edgekit.export.models import architecture
from edgekit.export.reference import MASKED, ReferenceModel
from edgekit.export.weights import load_float_weights
from edgekit.runtime.sampling import Committed, HeadRequest, generate
from edgekit.tools.tiny import corpus, fast_ops, tokenizer
from edgekit.tools.tiny.blocks import BlockDecoding
from edgekit.tools.tiny.evaluate import measure, subject_of, table
from edgekit.tools.tiny.lockstep import Lockstep
from edgekit.tools.tiny.mean import main
from edgekit.tools.tiny.models import MODELS
from edgekit.tools.tiny.objective import denoising_accuracy, noise_levels, objective, to_inputs
from edgekit.tools.tiny.start import initialise
from edgekit.tools.train_tiny import Settings, Trainer, learning_rate


def small(family: str, seed: int = 0, std: float = 0.15) -> ReferenceModel:
    """Two layers of the shipped shape; by default with weights large enough for positions and noise to
    matter."""
    config = copy.deepcopy(MODELS[family][0])
    if family == "gemma":
        config["text_config"] |= {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
        }
    else:
        config["n_layers" if family == "llada" else "num_hidden_layers"] = 2
    return ReferenceModel.random(architecture(config), seed, std)


@given(
    seed=st.integers(0, 1000),
    batch=st.integers(1, 3),
    groups=st.integers(1, 2),
    repeat=st.integers(1, 3),
    length=st.integers(1, 9),
    prefix=st.integers(0, 6),
    masked=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_fast_attention_equals_the_operator(
    seed: int, batch: int, groups: int, repeat: int, length: int, prefix: int, masked: bool
) -> None:
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, groups * repeat, length, 8, generator=g)
    k, v = torch.randn(2, batch, groups, length, 8, generator=g)
    pk, pv = torch.randn(2, batch, groups, prefix, 8, generator=g)
    mask = None
    if masked:
        hidden = torch.rand(batch, 1, length, prefix + length, generator=g) < 0.3
        hidden[..., -1] = False
        mask = torch.zeros(hidden.shape).masked_fill(hidden, MASKED)
    ours, theirs = (f(q, k, v, pk, pv, mask, 0.7) for f in (fast_ops.attention, ops.attention))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@given(seed=st.integers(0, 1000), tokens=st.integers(1, 40), count=st.integers(1, 5), data=st.data())
@settings(deadline=None, max_examples=40)
def test_fast_experts_equal_the_operator_with_gradients(
    seed: int, tokens: int, count: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, count))
    g = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(count, generator=g)[:top_k] for _ in range(tokens)])
    shapes = ((tokens, 16), (tokens, top_k), (count, 12, 16), (count, 16, 6))
    given_values = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
    outputs, gradients = [], []
    for function in (fast_ops.experts, ops.experts):
        x, weight, gate_up, down = (t.clone().requires_grad_() for t in given_values)
        out = function(x, index, weight, gate_up, None, None, down, None, None, "gelu_tanh")
        out.square().sum().backward()
        outputs.append(out.detach())
        gradients.append([t.grad for t in (x, weight, gate_up, down)])
    torch.testing.assert_close(*outputs, atol=1e-9, rtol=1e-9)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


@given(seed=st.integers(0, 1000), rows=st.integers(1, 5), width=st.integers(1, 9), weighted=st.booleans())
@settings(deadline=None, max_examples=40)
def test_fast_rms_norm_equals_the_operator_with_gradients(
    seed: int, rows: int, width: int, weighted: bool
) -> None:
    g = torch.Generator().manual_seed(seed)
    values, factors = torch.randn(rows, 2, width, generator=g), torch.randn(width, generator=g)
    found = []
    for function in (fast_ops.rms_norm, ops.rms_norm):
        x = values.clone().requires_grad_()
        weight = factors.clone().requires_grad_() if weighted else None
        out = function(x, weight, 1e-3)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        found.append([out.detach(), x.grad, *([] if weight is None else [weight.grad])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_starting_weights_keep_the_scale_of_the_residual_stream() -> None:
    for family in MODELS:
        model = ReferenceModel.random(architecture(MODELS[family][0]), 0)
        initialise(model)
        encoder = corpus.Encoder(family)
        _, batch = corpus.held_out(encoder, "json", 4, 32)
        ids = torch.from_numpy(batch.answer)
        with torch.no_grad():
            x, _ = model.layers(model.embed(ids), phase=0, causal=False)
        assert 0.7 < float(x.square().mean().sqrt()) < 3


def test_training_operators_are_undone_after_an_error() -> None:
    before = ops.attention, ops.experts, ops.rms_norm
    with pytest.raises(RuntimeError, match="stop"), fast_ops.training_operators():
        assert ops.experts is fast_ops.experts
        raise RuntimeError("stop")
    assert (ops.attention, ops.experts, ops.rms_norm) == before


@pytest.mark.parametrize("family", MODELS)
def test_padding_of_prompts_changes_nothing(family: str) -> None:
    """Logits of a row in a padded batch are those of the row alone, without padding, positions or masks."""
    model, encoder = small(family), corpus.Encoder(family)
    chosen = objective(model)
    _, question = corpus.held_out(encoder, "question", 1, 32)
    _, addition = corpus.held_out(encoder, "addition", 1, 32)
    prompts = [list(b.prompt[0]) for b in (question, addition)]
    targets = [list(b.answer[0, : b.answer_lengths[0]]) for b in (question, addition)]
    both = corpus.collate([], prompts, targets, encoder.family, 80, 32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        together, corrupted = chosen.corrupted_logits(to_inputs(both), 0.0, generator)
        assert not corrupted.any()
        for row, ids in enumerate(prompts):
            prompt, canvas = torch.tensor([ids]), torch.from_numpy(both.answer[row : row + 1])
            if family == "gemma":
                alone = model.denoise(canvas, model.encode(prompt))
            elif family == "llada":
                alone = model.denoise(torch.cat((prompt, canvas), 1))[:, len(ids) :]
            else:  # each block behind the clean text before it
                parts = [
                    model.denoise(canvas[:, i : i + 16], model.encode(torch.cat((prompt, canvas[:, :i]), 1)))
                    for i in range(0, canvas.shape[1], 16)
                ]
                alone = torch.cat(parts, 1)
            torch.testing.assert_close(together[row], alone[0], atol=1e-4, rtol=1e-4)


def test_noise_levels_cover_the_unit_interval() -> None:
    levels = noise_levels(16, "cpu").sort().values
    assert ((levels * 16).ceil() == torch.arange(1, 17)).all()


@pytest.mark.parametrize("family", MODELS)
def test_objective_can_be_learned(family: str) -> None:
    """A few updates on one batch lower the loss and raise the denoising accuracy far above the start."""
    torch.manual_seed(0)
    model, encoder = small(family, std=0.02), corpus.Encoder(family)
    _, batch = corpus.held_out(encoder, "question", 8, 16)
    inputs, chosen = to_inputs(batch), objective(model, copies=2)
    before = denoising_accuracy(chosen, inputs, 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    with fast_ops.training_operators():
        for _ in range(60):
            loss = chosen.loss(inputs)
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]
    assert denoising_accuracy(chosen, inputs, 0.5) > before + 0.4


@pytest.mark.parametrize("family", MODELS)
def test_every_weight_gets_a_gradient(family: str) -> None:
    torch.manual_seed(0)
    model, encoder = small(family), corpus.Encoder(family)
    _, batch = corpus.held_out(encoder, "json", 8, 32)
    with fast_ops.training_operators():
        objective(model).loss(to_inputs(batch)).backward()
    for name, weight in model.weights().items():
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0), name


class Alone:
    """A denoiser of one row, straight from the reference model."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model, self.prefix = model, None

    vocab_size = tokenizer.VOCAB_SIZE
    uncached, pieces = np.empty(0, np.int64), ()

    @property
    def hidden_size(self) -> int:
        return self.model.architecture.hidden_size

    @property
    def prefix_length(self) -> int:
        return 0 if self.prefix is None else self.prefix[0][0].shape[2]

    def reset(self) -> None:
        self.prefix = None

    def prefill(self, ids: Any) -> None:
        with torch.no_grad():
            self.prefix = self.model.encode(torch.from_numpy(np.asarray(ids))[None], self.prefix)

    def denoise(self, ids: Any, request: HeadRequest, soft: Any = None) -> Any:
        with torch.no_grad():
            given_soft = None if soft is None else torch.from_numpy(soft)[None]
            hidden = self.model.hidden(torch.from_numpy(np.asarray(ids))[None], self.prefix, given_soft)
            z = self.model.head(hidden[0])
        return head(z.numpy(), request, self.model.embedding.detach().numpy())


@pytest.mark.parametrize("family", ["gemma", "llada"])
def test_lockstep_generates_what_each_prompt_generates_alone(family: str) -> None:
    model, encoder = small(family), corpus.Encoder(family)
    overrides: dict[str, Any] = (
        {"max_denoising_steps": 4, "canvas_length": 16, "max_new_tokens": 32}
        if family == "gemma"
        else {"steps": 8, "gen_length": 16, "block_length": 8}
    )
    name, config = encoder.family.sampler, MODELS[family][1]
    section = {"name": name, "config": config}
    prompts = encoder.prompts(
        [encoder.family.prompt([], t) for t in ("Add 1 and 2.", "Repeat: red key 7", "Hi")]
    )

    def answer(denoiser: Any, index: int) -> list[int]:
        events = generate(denoiser, section, prompts[index], seed=index, options=overrides)
        return [t for e in events if isinstance(e, Committed) for t in e.ids.tolist()]

    jobs = [lambda denoiser, i=i: answer(denoiser, i) for i in range(3)]
    together = Lockstep(model).run(jobs)
    assert together == [answer(Alone(model), i) for i in range(3)]
    assert len({tuple(t) for t in together}) == 3


def test_lockstep_raises_the_error_of_a_job_and_finishes_the_others() -> None:
    model = small("llada")
    finished = []

    def good(denoiser: Any) -> None:
        for _ in range(3):
            denoiser.denoise(np.arange(4), HeadRequest())
        finished.append(True)

    def bad(denoiser: Any) -> None:
        denoiser.denoise(np.arange(4), HeadRequest())
        raise KeyError("broken job")

    with pytest.raises(KeyError, match="broken job"):
        Lockstep(model).run([good, bad, good])
    assert len(finished) == 2


@pytest.mark.parametrize("family", MODELS)
def test_measure_reports_every_task_and_a_table(family: str) -> None:
    subject = subject_of(small(family), corpus.Encoder(family), MODELS[family][1], steps=4)
    report = measure(subject, per_task=2, tasks=("addition-2", "json"), levels=(0.5, 1.0))
    assert set(report.exact_match) == {"addition-2", "json"}
    assert all(0 <= x <= 1 for r in report.denoising.values() for x in r.values())
    for task, (low, high) in report.interval.items():
        assert 0 <= low <= report.exact_match[task] <= high <= 1
        assert report.tokens_per_forward[task] > 0
    text = table(report).splitlines()
    assert [line.split()[0] for line in text] == ["task", "addition-2", "json", "mean"]


def decoding(seed: int, limit: int = 20) -> tuple[BlockDecoding, list[list[int]]]:
    encoder = corpus.Encoder("block")
    prompts = encoder.prompts(
        [encoder.family.prompt([], t) for t in ("Add 1 and 2.", "Repeat: red key 7", "Hi", "What is 8 + 70?")]
    )
    ends = frozenset(range(40, 60))  # random weights end answers as well
    return BlockDecoding(small("block", seed), tokenizer.MDM_MASK, ends, limit, block=8), prompts


@pytest.mark.parametrize("seed", range(4))
def test_drafted_and_verified_blocks_give_what_a_token_at_a_time_gives(seed: int) -> None:
    chosen, prompts = decoding(seed)
    one, drafted = chosen.autoregressive(prompts), chosen.speculative(prompts)
    assert [a.ids for a in one] == [a.ids for a in drafted]
    for prompt, answer in zip(prompts, one, strict=True):
        ids = list(answer.ids)
        kv = chosen.model.encode(torch.tensor([prompt + ids[:-1]]))
        assert kv[0][0].shape[2] == len(prompt) + len(ids) - 1
        assert answer.passes == len(ids)
        assert len(ids) == chosen.limit or ids[-1] in chosen.ends
        assert not any(token in chosen.ends for token in ids[:-1])


@pytest.mark.parametrize("seed", range(3))
def test_a_row_of_a_batch_is_decoded_as_it_is_alone(seed: int) -> None:
    chosen, prompts = decoding(seed)
    for mode in ("autoregressive", "speculative", "diffusion"):
        together = getattr(chosen, mode)(prompts)
        assert together == [getattr(chosen, mode)([prompt])[0] for prompt in prompts]


def test_blocks_are_filled_above_the_threshold_and_at_least_by_one() -> None:
    """Against a loop with the model's own prefix, token by token."""
    chosen, prompts = decoding(1, limit=8)
    for threshold in (0.0, 0.02, 1.1):
        for prompt, found in zip(prompts, chosen.diffusion(prompts, threshold), strict=True):
            block, passes = torch.full((1, 8), tokenizer.MDM_MASK), 1
            with torch.no_grad():
                kv = chosen.model.encode(torch.tensor([prompt]))
                block[0, 0] = int(chosen.autoregressive([prompt])[0].ids[0])
                while (open_ := block == tokenizer.MDM_MASK).any():
                    sure, best = torch.softmax(chosen.model.denoise(block, kv), -1).max(-1)
                    sure = sure.masked_fill(~open_, -1.0)
                    chosen_now = open_ & ((sure >= threshold) | (sure == sure.max()))
                    block, passes = torch.where(chosen_now, best, block), passes + 1
            assert found.ids == block[0].tolist()[: len(found.ids)]
            assert found.passes == passes
            assert len(found.ids) == 8 or found.ids[-1] in chosen.ends


def test_a_block_is_filled_where_the_model_chooses_the_mask() -> None:
    chosen, prompts = decoding(0, limit=8)
    with torch.no_grad():
        chosen.model.weights()["head.weight"].zero_()
    mask_always = replace(
        chosen, mask_id=0, ends=frozenset()
    )  # equal logits: the first token is the likeliest
    assert [(a.ids, a.passes) for a in mask_always.diffusion(prompts[:1])] == [([0] * 8, 8)]


def test_causal_rows_of_the_block_objective_see_no_later_token_and_no_noise() -> None:
    model, encoder = small("block"), corpus.Encoder("block")
    chosen = objective(model, block=8)
    _, batch = corpus.held_out(encoder, "json", 3, 32)
    inputs, phase = to_inputs(batch), torch.tensor([0, 3, 7])
    with torch.no_grad():
        causal, noisy = chosen.logits(inputs, inputs.answer, phase)
        other = inputs.answer.clone()
        other[:, 20:] = tokenizer.MDM_MASK
        same, changed = chosen.logits(inputs, other, phase)
        torch.testing.assert_close(causal, same)
        # A block that holds no changed position is as before.
        for row, first in enumerate((16, 13, 17)):
            torch.testing.assert_close(noisy[row, :first], changed[row, :first])
            assert not torch.allclose(noisy[row, first:20], changed[row, first:20], atol=1e-3)
        # Next tokens as a causal pass of the model gives them.
        for row, length in enumerate(batch.prompt_lengths):
            ids = torch.cat((inputs.prompt[row, -length:], inputs.answer[row]))[None]
            mask = torch.full(2 * [ids.shape[1]], MASKED).triu(1)
            own = model.head(model.hidden(ids, mask=mask))[0, length - 1 : -1]
            torch.testing.assert_close(causal[row], own, atol=1e-4, rtol=1e-4)


def test_a_start_from_trained_weights_finds_tokens_by_their_text(tmp_path: Any) -> None:
    trained = Trainer(Settings("llada", 1, tmp_path / "llada", seed=3))
    trained.save_model()
    path = tmp_path / "llada" / "tokenizer.json"
    # Another language: two words have changed places, and one is unknown here.
    text = path.read_text()
    vocab = json.loads(text)["model"]["vocab"]
    words = [w for w in vocab if vocab[w] >= 300][:3]
    for word, place in zip(words, (vocab[words[1]], vocab[words[0]], vocab[words[2]]), strict=True):
        text = text.replace(f"{json.dumps(word, ensure_ascii=False)}: {vocab[word]},", f"@{word}@: {place},")
    for i, word in enumerate(words):
        text = text.replace(f"@{word}@", json.dumps("unknown" if i == 2 else word, ensure_ascii=False))
    path.write_text(text)
    started = Trainer(Settings("block", 1, tmp_path / "block", start=tmp_path / "llada"))
    old = {n: w.to(torch.bfloat16).float() for n, w in trained.averaged.items()}
    for name, weight in started.model.weights().items():
        if name not in ("embedding.weight", "head.weight"):
            assert torch.equal(weight, old[name]), name
            continue
        a, b, c = (vocab[w] for w in words)
        assert torch.equal(weight[a], old[name][b]) and torch.equal(weight[b], old[name][a])
        assert not torch.equal(weight[c], old[name][c])
        rest = [i for i in range(512) if i not in (a, b, c)]
        assert torch.equal(weight[rest], old[name][rest])


@pytest.mark.parametrize("family", MODELS)
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(family: str, tmp_path: Any) -> None:
    """Bit for bit: weights, averages, and the optimizer's state, across a change of the curriculum."""

    def run(trainer: Trainer, until: int) -> None:
        with fast_ops.training_operators():
            while trainer.progress.step < until:
                trainer.step(trainer.next_batch())

    whole, halves = (
        Settings(family, 5, tmp_path / name, tokens=256, copies=2) for name in ("whole", "halves")
    )
    uninterrupted = Trainer(whole)
    run(uninterrupted, 5)
    first = Trainer(halves)
    run(first, 2)
    first.save_state()
    torch.manual_seed(99)
    resumed = Trainer(halves)
    resumed.resume()
    assert resumed.progress.step == 2 and resumed.share == pytest.approx(0.4)
    run(resumed, 5)
    for name, weight in uninterrupted.model.weights().items():
        assert torch.equal(weight, resumed.model.weights()[name]), name
        assert torch.equal(uninterrupted.averaged[name], resumed.averaged[name]), name
    states = (t.optimizer.state_dict()["state"] for t in (uninterrupted, resumed))
    for one, other in zip(*(s.values() for s in states), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("family", MODELS)
def test_a_run_saves_a_checkpoint_of_its_averages(family: str, tmp_path: Any) -> None:
    settings_ = Settings(family, 1, tmp_path / "model", tokens=256, copies=2)
    first = Trainer(settings_)
    with fast_ops.training_operators():
        first.step(first.next_batch())
    first.save_model()

    checkpoint = Checkpoint.open(settings_.out)
    arch = architecture(checkpoint.config, "bfloat16")
    checkpoint.check(arch.stored_shapes())
    for name, weight in load_float_weights(arch, checkpoint).items():
        assert torch.equal(weight, first.averaged[name].to(torch.bfloat16).float())
    size = (settings_.out / "model.safetensors").stat().st_size
    assert size < 12_000_000
    expected = {"config", "generation_config", "model", "tokenizer", "tokenizer_config"}
    assert {p.stem for p in settings_.out.iterdir()} == expected


def test_resuming_nothing_or_another_run_or_vocabulary_is_refused(tmp_path: Any) -> None:
    trainer = Trainer(Settings("llada", 9, tmp_path / "model"))
    with pytest.raises(click.ClickException, match="nothing to resume"):
        trainer.resume()
    trainer.save_state()
    state = torch.load(trainer.state_path, weights_only=True)
    with pytest.raises(click.ClickException, match="had steps 9, not 10; resume it with the same options"):
        Trainer(Settings("llada", 10, tmp_path / "model")).resume()
    torch.save(state | {"tokenizer": "{}"}, trainer.state_path)
    with pytest.raises(click.ClickException, match="another vocabulary"):
        trainer.resume()


def test_learning_rate_warms_up_and_ends_low() -> None:
    assert learning_rate(0.0, 0, 1.0) < 0.02
    assert learning_rate(0.0, 200, 1.0) == pytest.approx(1.0)
    assert learning_rate(0.5, 200, 1.0) == pytest.approx(0.51)
    assert learning_rate(1.0, 200, 1.0) == learning_rate(1.5, 200, 1.0) == pytest.approx(0.02)


def test_the_mean_of_runs_is_that_of_their_tensors(tmp_path: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    tensors = [
        {"b": torch.randn(3, 2, generator=drawn), "a": torch.randn(4, generator=drawn)} for _ in range(3)
    ]
    for place, own in enumerate(tensors):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"run": {place}}}')
        (folder / "golden-mixed4-32.json").write_text("{}")
        save_file({name: tensor.bfloat16() for name, tensor in own.items()}, folder / "model.safetensors")
    run = CliRunner().invoke(main, [str(tmp_path / name) for name in ("out", "1", "0", "2")])
    assert run.exit_code == 0, run.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"run": 1}
    for name, found in load_file(tmp_path / "out" / "model.safetensors").items():
        expected = np.mean([own[name].bfloat16().double().numpy() for own in tensors], axis=0)
        assert found.dtype == torch.bfloat16
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=2**-8)
    again = CliRunner().invoke(main, [str(tmp_path / name) for name in ("out", "1")])
    assert "exists; give a new folder" in again.output
    save_file({"a": torch.zeros(4)}, tmp_path / "2" / "model.safetensors")
    other = CliRunner().invoke(main, [str(tmp_path / name) for name in ("more", "0", "2")])
    assert "has other tensors than" in other.output and not (tmp_path / "more").exists()
