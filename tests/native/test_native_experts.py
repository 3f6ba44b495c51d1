"""Experts in the native session: those without rows are not read, memory goes to those that are used, and the
results are the same bits all the while.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.bundles import TILE_BYTES
from support.checkpoints import write_checkpoint
from support.native_reading import OnRead, span
from support.native_testing import library
from test_native_session_errors import flip_byte
from test_native_session_faults import Disk, Model, session

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import errors
from edgekit.flashload.reader import FlashFile
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.sampling import HeadRequest
from edgekit.runtime.sampling.types import Floats
from edgekit.runtime.session import Segment, Session, SessionOptions, plan_session

LAYERS, EXPERTS = 2, 8
#: The last in the file, so that reading in the order of the file would come to them last.
USED = range(4, 8)
ROUTERS = {"llada_moe": "model.layers.{}.mlp.gate.weight",
           "diffusion_gemma": "model.decoder.layers.{}.router.proj.weight"}  # fmt: skip
CANVAS, PROMPT = np.arange(64) * 5 % 380, np.arange(40) * 7 % 380
STREAMED = SessionOptions(resident_bytes=0, canvas=64, positions=256)
#: Passes that are counted before anything is exchanged.
COUNTED = 16


def route_to_used(checkpoint: Path, name: str) -> None:
    """Routers that choose two of USED whatever the input: of any row and its negative one has a higher score
    than a row of zeros.
    """
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    rng = np.random.default_rng(7)
    for i in range(LAYERS):
        router = tensors[name.format(i)]
        assert len(router) == EXPERTS
        rows = rng.standard_normal((len(USED) // 2, router.shape[1])).astype(np.float32)
        router[:] = 0
        router[USED.start : USED.stop : 2], router[USED.start + 1 : USED.stop : 2] = rows, -rows
    save_file(tensors, path)


@pytest.fixture(scope="module", params=ROUTERS)
def routed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Of the family without a prefix."""
    return make(tmp_path_factory.mktemp("masked"), "llada_moe")


def make(folder: Path, family: str) -> Model:
    write_checkpoint(folder / "checkpoint", family, num_hidden_layers=LAYERS, num_experts=EXPERTS)
    route_to_used(folder / "checkpoint", ROUTERS[family])
    options = ExportOptions("native", scheme=Scheme("mixed4"), tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    with Session(folder / "bundle", SessionOptions(canvas=64)) as resident:
        return Model(folder / "bundle", logits(resident))


def logits(opened: Session) -> Floats:
    """Of a canvas, after a prompt where the model encodes one."""
    opened.reset()
    if opened.model.causal_prefix:
        opened.prefill(PROMPT)
    found = opened.denoise(CANVAS, HeadRequest(logits=True)).logits
    assert found is not None
    return found


def run_passes(opened: Session, count: int) -> None:
    for _ in range(count):
        opened.denoise(CANVAS, HeadRequest(rows=np.array([0])))


class Expert(NamedTuple):
    rows: int
    passes: int
    idle_passes: int
    pinned: bool


def experts(opened: Session) -> list[list[Expert]]:
    """Of the layers of a session of the testing library."""

    def expert(layer: int, index: int) -> Expert:
        counts = (ctypes.c_uint64 * 4)()
        place = (ctypes.c_uint64(layer), ctypes.c_uint64(index))
        assert library().ekt_session_expert(ctypes.c_void_p(opened._handle), *place, counts) == 0
        return Expert(*counts[:3], bool(counts[3]))

    return [[expert(i, e) for e in range(EXPERTS)] for i in range(LAYERS)]


def skipped_and_exchanged(opened: Session) -> tuple[int, int]:
    """Bytes."""
    statistics = opened.statistics()
    return statistics["bytes_skipped"], statistics["bytes_exchanged"]


def length_of(model: Model) -> int:
    """Of an expert's run, the same for all."""
    lengths = {
        span(model.weights, f"layers.{i}.experts.{e}")[1] for i in range(LAYERS) for e in range(EXPERTS)
    }
    assert len(lengths) == 1
    return lengths.pop()


def pinning(model: Model, per_layer: int) -> SessionOptions:
    """So many experts of every layer in memory, and the dense runs."""
    step = plan_session(Bundle.open(model.bundle)).units
    dense = sum(unit.nbytes for unit in step if unit.group not in ("expert", "embedding"))
    return SessionOptions(
        resident_bytes=dense + per_layer * LAYERS * length_of(model), canvas=64, positions=256
    )


@contextmanager
def opened(model: Model, options: SessionOptions, on_read: OnRead | None = None) -> Iterator[Session]:
    disk = Disk()
    disk.on_read = on_read
    with session(model, disk, options) as made:
        yield made


def test_use_is_counted(routed: Model) -> None:
    for options in (SessionOptions(canvas=64), STREAMED):
        with opened(routed, options) as made:
            logits(made)
            passes, positions = 1, CANVAS.size
            if made.model.causal_prefix:
                passes += -(-PROMPT.size // made.model.canvas_length)  # chunks
                positions += PROMPT.size
            for layer in experts(made):
                assert sum(x.rows for x in layer) == 2 * positions
                assert all(x.passes + x.idle_passes == passes for x in layer)
                for e, x in enumerate(layer):
                    assert (x.rows > 0) == (x.passes > 0) == (e in USED)


def test_experts_without_rows_are_not_read(routed: Model) -> None:
    """What the order of the file lets through in the first passes is skipped once use is known."""
    unused = LAYERS * (EXPERTS - len(USED)) * length_of(routed)
    with opened(routed, STREAMED) as made:
        per_pass = made.statistics()["streamed_bytes_per_step"]
        np.testing.assert_array_equal(logits(made), routed.expected)
        run_passes(made, 2)
        made.idle()
        read, (skipped, _) = made.statistics()["bytes_read"], skipped_and_exchanged(made)
        run_passes(made, 5)
        assert skipped_and_exchanged(made)[0] - skipped == 5 * unused
        made.idle()
        needed = 5 * (per_pass - unused)
        # Beyond the five passes only what was read ahead for a sixth.
        ring = made.statistics()["ring_bytes"]
        assert needed <= made.statistics()["bytes_read"] - read <= needed + ring
        np.testing.assert_array_equal(logits(made), routed.expected)


def test_an_expert_is_read_at_most_once_per_pass(routed: Model) -> None:
    with FlashFile(routed.weights) as file:
        starts = {run.offset: name for name, run in file.runs.items()}
    reads: Counter[str] = Counter()

    def note(offset: int, nbytes: int) -> None:
        if offset in starts:
            reads[starts[offset]] += 1

    with opened(routed, STREAMED, note) as made:
        run_passes(made, 2)
        for _ in range(4):
            made.idle()
            reads.clear()
            run_passes(made, 1)
            made.idle()
            # The first layer's may have been read ahead for another pass besides.
            assert all(1 <= reads[f"layers.0.experts.{e}"] <= 2 for e in USED), reads
            assert all(reads[f"layers.1.experts.{e}"] == 1 for e in USED), reads
            assert not any(
                reads[f"layers.{i}.experts.{e}"] for i in range(LAYERS) for e in range(USED.start)
            ), reads


@pytest.mark.parametrize("boundary", ["idle", "reset"])
def test_memory_goes_to_the_experts_that_are_used(routed: Model, boundary: str) -> None:
    with opened(routed, pinning(routed, 3)) as made:
        before = made.statistics()
        pinned = [[x.pinned for x in layer] for layer in experts(made)]
        assert all(sum(layer) == 3 and any(layer[: USED.start]) for layer in pinned), "a plan that spreads"
        run_passes(made, COUNTED - 1)
        getattr(made, boundary)()
        assert [[x.pinned for x in layer] for layer in experts(made)] == pinned, "too early"
        for _ in range(6):  # a bounded amount at a time
            _, exchanged = skipped_and_exchanged(made)
            run_passes(made, COUNTED)
            getattr(made, boundary)()
            most = max(length_of(routed), before["streamed_bytes_per_step"] // 8)
            assert skipped_and_exchanged(made)[1] - exchanged <= most
            np.testing.assert_array_equal(logits(made), routed.expected)
        for layer, old in zip(experts(made), pinned, strict=True):
            assert sum(x.pinned for x in layer) == 3
            assert all(e in USED for e, x in enumerate(layer) if x.pinned)
            assert all(layer[e].pinned for e in USED if old[e]), "one that is used gave up its place"
        moved = sum(sum(old[: USED.start]) for old in pinned) * length_of(routed)
        assert skipped_and_exchanged(made)[1] == moved
        for name in ("pinned_bytes", "ring_bytes", "streamed_bytes_per_step"):
            assert made.statistics()[name] == before[name]


def test_where_every_pass_uses_every_expert_nothing_is_exchanged(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", "llada_moe", num_hidden_layers=LAYERS)
    options = ExportOptions("native", scheme=Scheme("int8"), tile_bytes=TILE_BYTES)
    export(tmp_path / "checkpoint", tmp_path / "bundle", options)
    model = Model(tmp_path / "bundle", np.zeros(0, np.float32))
    with opened(model, pinning(model, 3)) as made:
        canvas = np.random.default_rng(0).integers(0, made.vocab_size, 256)
        pinned = [[x.pinned for x in layer] for layer in experts(made)]
        for _ in range(2 * COUNTED):
            made.denoise(canvas, HeadRequest(rows=np.array([0])))
        made.idle()
        assert all(x.idle_passes == 0 for layer in experts(made) for x in layer), "not the case to be tested"
        assert skipped_and_exchanged(made) == (0, 0)
        assert [[x.pinned for x in layer] for layer in experts(made)] == pinned
        read = made.statistics()["bytes_read"]
        made.denoise(canvas, HeadRequest(rows=np.array([0])))
        assert made.statistics()["bytes_read"] - read >= made.statistics()["streamed_bytes_per_step"]


def test_an_exchange_that_cannot_be_read_leaves_everything_as_it_was(routed: Model) -> None:
    disk = Disk()
    with session(routed, disk, pinning(routed, 3)) as made:
        for _ in range(3):
            run_passes(made, COUNTED)
            before = [[x.pinned for x in layer] for layer in experts(made)]
            disk.on_read = lambda offset, nbytes: -errno.EIO
            made.idle()
            disk.on_read = None
            assert skipped_and_exchanged(made)[1] == 0
            assert [[x.pinned for x in layer] for layer in experts(made)] == before
            np.testing.assert_array_equal(logits(made), routed.expected)
        run_passes(made, COUNTED)
        made.idle()
        assert skipped_and_exchanged(made)[1] > 0
        np.testing.assert_array_equal(logits(made), routed.expected)


def test_a_damaged_expert_is_told_when_it_is_used(masked: Model, tmp_path: Path) -> None:
    """One that exchanges would bring in, and keep trying to."""
    options = pinning(masked, 3)
    with opened(masked, options) as made:
        streamed = next(e for e in USED if not experts(made)[1][e].pinned)
    run = f"layers.1.experts.{streamed}"
    copy = copied(masked, tmp_path)
    repair = flip_byte(copy.bundle, run)
    with opened(copy, options) as made:
        for _ in range(3):
            for _ in range(COUNTED):
                with pytest.raises(errors.ChecksumMismatch, match=run):
                    run_passes(made, 1)
            made.idle()
            assert not experts(made)[1][streamed].pinned
        assert skipped_and_exchanged(made)[1] > 0, "others are exchanged beside it"
        repair()
        np.testing.assert_array_equal(logits(made), masked.expected)


def test_damage_to_an_expert_that_no_pass_uses_harms_none(masked: Model, tmp_path: Path) -> None:
    copy = copied(masked, tmp_path)
    flip_byte(copy.bundle, "layers.1.experts.0")
    with opened(copy, STREAMED) as made:
        for _ in range(3):
            np.testing.assert_array_equal(logits(made), masked.expected)


def copied(model: Model, folder: Path) -> Model:
    return Model(Path(shutil.copytree(model.bundle, folder / "bundle")), model.expected)


# --- experts that stay for the steps on a block -------------------------------------------------------------

BLOCK, CAPACITY = 8, 4
BLOCKS = [np.random.default_rng(b).integers(0, 380, BLOCK) for b in range(5)]


class Blocks(NamedTuple):
    model: Model
    logits: list[Floats]  # of BLOCKS, by a session that holds all weights


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Blocks:
    """A model whose blocks want four of eight experts a layer."""
    folder = tmp_path_factory.mktemp("blocks")
    write_checkpoint(
        folder / "checkpoint", "llada2_moe", num_hidden_layers=LAYERS, num_experts=EXPERTS,
        first_k_dense_replace=0, expert_capacity=CAPACITY, block_size=BLOCK,
    )  # fmt: skip
    options = ExportOptions("native", scheme=Scheme("mixed4"), tile_bytes=TILE_BYTES)
    export(folder / "checkpoint", folder / "bundle", options)
    with Session(folder / "bundle", SessionOptions(canvas=64)) as resident:
        found = [step(resident, block) for block in BLOCKS]
    return Blocks(Model(folder / "bundle", found[0]), found)


def test_where_a_step_uses_some_experts_alone_dense_parts_come_first(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path / "checkpoint", "llada2_moe", num_hidden_layers=LAYERS, num_experts=EXPERTS,
        first_k_dense_replace=0, expert_capacity=CAPACITY, block_size=BLOCK, hidden_size=256,
        moe_intermediate_size=1024, vocab_size=40_000,
    )  # fmt: skip
    options = ExportOptions("native", scheme=Scheme("mixed4"), tile_bytes=1 << 20)
    export(tmp_path / "checkpoint", tmp_path / "bundle", options)
    bundle = Bundle.open(tmp_path / "bundle")
    whole = plan_session(bundle, SessionOptions(canvas=BLOCK))
    order = [unit.group for unit in whole.units]
    heads, experts = order.count("head"), order.count("expert")
    assert heads > 4 and experts == LAYERS * EXPERTS
    step_bytes = sum(unit.nbytes for unit in whole.units if unit.group != "embedding")
    between = 0
    for share in range(5, 100, 5):
        found = {}
        for blocks in (1, 2):  # two may want all of a layer's experts
            options = SessionOptions(canvas=blocks * BLOCK, resident_bytes=share * step_bytes // 100)
            pinned = [unit.group for unit in plan_session(bundle, options).units if unit.pinned]
            found[blocks] = pinned.count("head"), pinned.count("expert")
        # What is left of a tile's place may still hold an expert.
        assert found[1][0] >= heads - 1 or found[1][1] <= 2, share
        assert found[1][0] >= found[2][0] and found[1][1] <= found[2][1], share
        between += found[1][0] > found[2][0] and found[1][1] < found[2][1]
    assert between > 5


def step(opened: Session, block: np.ndarray) -> Floats:
    found = opened.denoise(block, HeadRequest(logits=True)).logits
    assert found is not None
    return found


def read_by(opened: Session, block: np.ndarray, expected: Floats) -> int:
    """Bytes that a step reads."""
    before = opened.statistics()["bytes_read"]
    np.testing.assert_array_equal(step(opened, block), expected)
    return int(opened.statistics()["bytes_read"]) - before


def test_a_block_reads_its_experts_once(blocks: Blocks) -> None:
    with opened(blocks.model, pinning(blocks.model, CAPACITY)) as made:
        ring = made.statistics()["ring_bytes"]
        for block, expected in zip(BLOCKS[:2], blocks.logits, strict=False):
            read_by(made, block, expected)  # it becomes known that they fit
        made.idle()
        for block, expected in zip(BLOCKS[2:], blocks.logits[2:], strict=True):
            before = [[x.passes for x in layer] for layer in experts(made)]
            held = [[x.pinned for x in layer] for layer in experts(made)]
            first = read_by(made, block, expected)
            wanted = [
                [x.passes > old for x, old in zip(layer, earlier, strict=True)]
                for layer, earlier in zip(experts(made), before, strict=True)
            ]
            missing = sum(
                w and not h
                for layer, own in zip(wanted, held, strict=True)
                for w, h in zip(layer, own, strict=True)
            )
            assert all(sum(layer) <= CAPACITY for layer in wanted)
            assert first == missing * length_of(blocks.model) and missing > 0
            assert [read_by(made, block, expected) for _ in range(4)] == [0] * 4
        assert made.statistics()["ring_bytes"] == ring
        assert all(sum(x.pinned for x in layer) == CAPACITY for layer in experts(made))


def test_what_stays_is_counted(blocks: Blocks) -> None:
    with opened(blocks.model, STREAMED) as made:
        for _ in range(3):
            step(made, BLOCKS[0])
        found = made.statistics()
        assert found["expert_layers"] == 3 * LAYERS
        assert LAYERS < found["experts_wanted"] / 3 <= CAPACITY * LAYERS
        assert found["experts_again"] == found["experts_wanted"] * 2 // 3
        made.prefill(np.concatenate(BLOCKS[:2]))
        assert made.statistics()["expert_layers"] == 3 * LAYERS, "of denoising alone"


@pytest.mark.parametrize("per_layer", [0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, EXPERTS])
def test_every_way_to_hold_experts_gives_the_same_bits(blocks: Blocks, per_layer: int) -> None:
    """Also with text and other blocks between the steps, and two blocks in a pass: more than fits."""
    options = replace(pinning(blocks.model, per_layer), sequences=2)
    with opened(blocks.model, options) as made, made.open_sequence() as other:
        request = HeadRequest(logits=True)
        for turn in range(3):
            for i in (0, 1, 1, 2, 2, 2):
                np.testing.assert_array_equal(step(made, BLOCKS[i]), blocks.logits[i])
            made.prefill(np.concatenate(BLOCKS))
            made.reset()
            np.testing.assert_array_equal(step(made, BLOCKS[turn]), blocks.logits[turn])
            pair = [Segment(made.sequence, BLOCKS[3], request), Segment(other, BLOCKS[4], request)]
            for found, expected in zip(made.run_pass(pair), blocks.logits[3:], strict=True):
                assert found is not None and found.logits is not None
                np.testing.assert_array_equal(found.logits, expected)
            if turn == 1:
                made.idle()


def test_an_expert_that_cannot_be_brought_fails_its_pass_alone(blocks: Blocks, tmp_path: Path) -> None:
    options = pinning(blocks.model, CAPACITY)
    with opened(blocks.model, options) as made:
        pinned = [[x.pinned for x in layer] for layer in experts(made)]
        for block in np.repeat(BLOCKS[:2], 2, axis=0):
            step(made, block)
        known = [[x.passes > 0 for x in layer] for layer in experts(made)]
        for block in BLOCKS[2:]:
            step(made, block)
        new = [
            (i, e)
            for i, layer in enumerate(experts(made))
            for e, x in enumerate(layer)
            if x.passes > 0 and not known[i][e] and not pinned[i][e]
        ]
    i, e = new[-1]
    copy = copied(blocks.model, tmp_path)
    repair = flip_byte(copy.bundle, f"layers.{i}.experts.{e}")
    with opened(copy, options) as made:
        for block in np.repeat(BLOCKS[:2], 2, axis=0):
            step(made, block)
        with pytest.raises(errors.ChecksumMismatch, match=f"layers.{i}.experts.{e}"):
            for block in BLOCKS[2:]:
                step(made, block)
        repair()
        for _ in range(3):
            for block, expected in zip(BLOCKS, blocks.logits, strict=True):
                np.testing.assert_array_equal(step(made, block), expected)
