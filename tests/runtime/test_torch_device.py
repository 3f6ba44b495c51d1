"""The torch engine on a device with memory of its own, whose work is done late: on the processor, by a device
of the tests that does what a GPU does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.late_device import LateDevice, late_session
from support.native_bundles import three_layers
from support.pass_kinds import texts

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.runtime.engines.torch import tiers
from edgekit.runtime.engines.torch.engine import TorchEngine
from edgekit.runtime.engines.torch.graphs import Graphs
from edgekit.runtime.engines.torch.mixture import TensorMixture
from edgekit.runtime.engines.torch.own_memory import OwnMemory
from edgekit.runtime.engines.torch.slots import Slot, Slots
from edgekit.runtime.errors import EngineFailed
from edgekit.runtime.generation import Generator, Prompt, Settings, sampler_model
from edgekit.runtime.sampling import Committed, CoreSampler, HeadOutput, HeadRequest, drive
from edgekit.runtime.session import Session, SessionOptions, open_session

LENGTHS: dict[str, Any] = {"positions": 96, "canvas": 16, "sequences": 3}
HOW = ("resident", "kept", "streamed", "least", "tiers")


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two of the largest unit: slots are used in turns."""
    monkeypatch.setattr(tiers, "_LEAST_SLOTS", 0)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return three_layers(tmp_path_factory)


def options(bundle: Path, how: str) -> tuple[SessionOptions, int | None]:
    """Of a session, and the bytes of weights that may stay on the device."""
    if how in ("resident", "kept"):
        return SessionOptions(**LENGTHS), 0 if how == "resident" else None
    if how == "streamed":
        return SessionOptions(resident_bytes=0, **LENGTHS), 0
    if how == "tiers":  # a third on the device, a third in memory, the rest on the disk
        with at_once(bundle) as session:
            third = session.plan.weights_bytes // 3
        return SessionOptions(resident_bytes=third, **LENGTHS), third
    too_little = SessionOptions(memory_bytes=1, **LENGTHS)
    with pytest.raises(BudgetExceeded) as told, late_session(bundle, too_little, 0):
        pass
    wanted = told.value.needed_bytes + (4 << 20)
    return SessionOptions(memory_bytes=wanted, resident_bytes=0, **LENGTHS), 0


def at_once(bundle: Path) -> Session:
    """A session of the torch engine on the processor."""
    return open_session(bundle, SessionOptions(threads=1, **LENGTHS), engine="torch")


def assert_equal(found: list[HeadOutput], expected: list[HeadOutput]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        for name, value in vars(a).items():
            np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_passes_of_all_kinds_are_those_of_the_processor(
    bundles: Callable[[str], Path], family: str, how: str
) -> None:
    """Several sequences, kept, replaced and moved rows, rows of other segments: to the bit."""
    bundle, causal = bundles(family), family == "diffusion_gemma"
    with at_once(bundle) as session:
        expected = texts(session, causal)
    wanted, weight_bytes = options(bundle, how)
    for seed in range(3):
        with late_session(bundle, wanted, weight_bytes, seed=seed) as (session, device):
            assert_equal(texts(session, causal), expected)
            statistics = session.statistics()
            # Work is given while earlier work waits, and weights stay on the device as they may.
            assert device.behind > 2
            assert (statistics["device_weight_bytes"] > 0) == (how in ("kept", "tiers"))
            assert statistics["device_weight_bytes"] == session.plan.kept_bytes
            uploads = statistics["device_uploaded_bytes"] / session.plan.weights_bytes
            assert uploads <= 1 if how == "kept" else uploads > 1


@pytest.mark.parametrize("how", ["kept", "streamed"])
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-gemma"])
def test_generations_are_token_for_token_those_of_the_core(
    shipped_bundle: Callable[..., Path], name: str, how: str
) -> None:
    bundle = shipped_bundle(name, "native")

    def tokens(session: Session) -> list[int]:
        lengths = {"max_new_tokens": 32, "steps": 16}
        sampler = CoreSampler(sampler_model(session.bundle), [5, 6, 7, 9], seed=1, **lengths)
        events = [each for each in drive(sampler, session) if isinstance(each, Committed)]
        return [int(each) for event in events for each in event.ids]

    with open_session(bundle) as session:
        expected = tokens(session)
    wanted, room = (SessionOptions(), None) if how == "kept" else (SessionOptions(resident_bytes=0), 0)
    with late_session(bundle, wanted, room, seed=5) as (session, device):
        assert tokens(session) == expected
        # Layers repeat, and what comes before experts, here in few steps.
        assert device.captured > 0 and device.replayed > device.captured * (name == "tiny-llada")


@pytest.mark.parametrize("how", ["kept", "streamed"])
@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_steps_that_are_replayed_are_those_that_are_computed(
    bundles: Callable[[str], Path], family: str, how: str
) -> None:
    """Other tokens at the same addresses, then another length, and the first one again."""
    bundle = bundles(family)

    def steps(session: Session) -> list[HeadOutput]:
        if family == "diffusion_gemma":
            session.prefill(np.arange(20))
        request = HeadRequest(logits=True)
        counts = [9] * 5 + [7] * 4 + [9] * 3
        return [session.denoise(np.arange(n, n + count), request) for n, count in enumerate(counts)]

    with at_once(bundle) as session:
        expected = steps(session)
    wanted, weight_bytes = options(bundle, how)
    with late_session(bundle, wanted, weight_bytes, seed=1) as (session, device):
        assert_equal(steps(session), expected)
        assert device.replayed > 2 * device.captured > 0
        assert session.statistics()["graphs"] == device.captured


def test_several_texts_share_passes(shipped_bundle: Callable[..., Path]) -> None:
    bundle = shipped_bundle("tiny-gemma", "native")
    prompts = [Prompt("Copy this: Ada 7 cat"), Prompt("Copy this: Ben 2"), Prompt("What is 23 + 45?")]
    settings = Settings(max_new_tokens=16, steps=8, seed=3)

    def answers(engine: Any) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        with Generator(bundle, engine=engine) as generator:
            for number, event in generator.generate_many(prompts, settings, at_once=2):
                if isinstance(event, Committed):
                    found.setdefault(number, []).extend(event.ids.tolist())
        return found

    device = LateDevice(seed=2)
    made = answers(lambda opened: TorchEngine(opened.folder, opened.manifest, 1, device))
    device.close()
    assert made == answers("native")
    assert not device.blocks and not device.mistakes


def test_weights_that_are_copied_too_early_are_found_out(bundles: Callable[[str], Path]) -> None:
    """The tests above can fail."""
    bundle, differ = bundles("llada"), 0
    with at_once(bundle) as session:
        expected = tried(session, False)
    for seed in range(4):
        late: dict[str, Any] = {"seed": seed, "careless": True, "microseconds": 2000}
        # The session waits for streamed units anyway.
        with late_session(bundle, SessionOptions(**LENGTHS), 0, **late) as (session, _):
            for _ in range(3):
                try:
                    differ += not np.array_equal(tried(session, False).logits, expected.logits)
                except EdgekitError:
                    differ += 1
    assert differ > 0


# --- failures -----------------------------------------------------------------------------------------------


def tried(session: Session, causal: bool) -> HeadOutput:
    session.reset()
    if causal:
        session.prefill(np.arange(21))
    return session.denoise(np.arange(5, 12), HeadRequest(logits=True))


@pytest.mark.parametrize("how", ["kept", "streamed"])
@pytest.mark.parametrize(
    ("family", "function"),
    [
        ("llada", "layers"), ("llada", "final"), ("llada", "head_tile"), ("diffusion_gemma", "route"),
        ("diffusion_gemma", "experts"), ("diffusion_gemma", "join"), ("diffusion_gemma", "self_condition"),
    ],
)  # fmt: skip
def test_a_failure_is_raised_by_the_pass_and_the_next_one_is_as_ever(
    bundles: Callable[[str], Path], family: str, function: str, how: str
) -> None:
    bundle, causal = bundles(family), family == "diffusion_gemma"
    wanted, weight_bytes = options(bundle, how)
    left = [0]

    def change(engine: TorchEngine) -> None:
        own = getattr(engine, function)

        def failing(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise EngineFailed(f"{function} does not work")
            return own(*arguments)

        setattr(engine, function, failing)

    with late_session(bundle, wanted, weight_bytes, change, seed=4) as (session, device):
        expected = tried(session, causal)
        for nth in (1, 2, 3):
            left[0] = nth
            with pytest.raises(EngineFailed, match=f"^{function} does not work$"):
                for _ in range(3):  # some are called once in a pass
                    tried(session, causal)
            assert_equal([tried(session, causal)], [expected])


def test_a_device_without_memory_is_one_line(bundles: Callable[[str], Path]) -> None:
    bundle, lines = bundles("diffusion_gemma"), []
    for memory in (0, 20_000, 60_000, 150_000):
        with (
            pytest.raises(EdgekitError) as told,
            late_session(bundle, SessionOptions(**LENGTHS), memory=memory) as (session, _),
        ):
            tried(session, True)
        lines.append(str(told.value))
    assert all("\n" not in line and "memory left" in line for line in lines), lines
    assert any("of weights" in line for line in lines)


def test_weights_that_find_less_room_than_there_was_stream(
    bundles: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, keep = bundles("llada"), tiers.Tiers.keep
    with at_once(bundle) as session:
        expected = tried(session, False)

    def keep_two(own: tiers.Tiers, given: Any) -> bool:
        return len(own._blocks) < 2 and keep(own, given)

    monkeypatch.setattr(tiers.Tiers, "keep", keep_two)
    for resident in (None, 0):
        wanted = SessionOptions(resident_bytes=resident, **LENGTHS)
        with late_session(bundle, wanted) as (session, _):
            for _ in range(2):
                assert_equal([tried(session, False)], [expected])
            assert sum(unit.kept for unit in session.plan.units) == 2
            assert session.statistics()["device_weight_bytes"] == session.plan.kept_bytes


# --- parts --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Block:
    nbytes: int
    users: list[int] = field(default_factory=list)


class Asking:
    """Slots, and what is held of them."""

    def __init__(self, least: int) -> None:
        self.slots: Slots[Block, int] = Slots(self.allocate, self.release, least)
        self.made: list[Block] = []
        self.freed: list[Block] = []
        self.held: list[Slot[Block, int]] = []
        self.sizes = {b"unit %d" % n: 5 * n for n in range(1, 7)}
        self.least, self.largest, self.mark = least, 0, 0

    def allocate(self, nbytes: int) -> Block:
        self.made.append(Block(nbytes))
        return self.made[-1]

    def release(self, block: Block, used: int | None) -> None:
        assert block not in [each.block for each in self.held]
        assert used == (block.users[-1] if block.users else None)
        self.freed.append(block)

    def ask(self, unit: bytes) -> Slot[Block, int]:
        size = self.sizes[unit]
        self.largest = max(self.largest, size)
        slot = self.slots.find(unit)
        taken = slot is None
        if slot is None:
            slot = self.slots.take(unit, size)
            assert slot not in self.held and slot.block not in self.freed
            # Whoever copies into it knows what used it last.
            assert slot.used == (slot.block.users[-1] if slot.block.users else None)
        assert slot.unit == unit and size <= slot.nbytes == slot.block.nbytes
        self.held.append(slot)
        if taken:
            in_use = sum({id(each): each.nbytes for each in self.held}.values())
            assert self.slots.nbytes <= max(self.least, 2 * self.largest, in_use)
        assert self.slots.nbytes == sum(each.nbytes for each in self.made if each not in self.freed)
        return slot

    def submit(self, slots: list[Slot[Block, int]]) -> None:
        self.mark += 1
        for each in slots:
            self.held.remove(each)
            each.block.users.append(self.mark)
        self.slots.done(slots, self.mark)


@given(st.lists(st.lists(st.integers(1, 6), max_size=6), max_size=20), st.integers(0, 60))
def test_slots_are_never_shared_and_take_no_more_than_they_may(layers: list[list[int]], least: int) -> None:
    """Layers of a unit of their own, and experts of which several wait for each other."""
    asking = Asking(least)
    for layer, experts in enumerate(layers):
        own = b"unit %d" % (layer % 6 + 1)
        asking.submit([asking.ask(own)])
        stays = asking.ask(own)
        waiting = []
        for number in experts:
            waiting.append(asking.ask(b"unit %d" % number))
            if number == 1:
                asking.submit(waiting)
                waiting = []
        asking.submit(waiting)
        assert asking.ask(own) is stays
        asking.submit([stays])
        asking.held.remove(stays)
        asking.slots.done([stays], None)
    assert not asking.held
    asking.slots.clear()
    assert sorted(map(id, asking.made)) == sorted(map(id, asking.freed))


def test_slots_take_turns() -> None:
    """While work computes with one unit, the next one is copied over the one before it."""
    slots: Slots[Block, int] = Slots(Block, lambda block, used: None, 0)
    taken: list[Slot[Block, int]] = []
    for number in range(8):
        taken.append(slots.take(b"%d" % number, 10))
        slots.done([taken[-1]], number)
    assert [taken[0], taken[1]] * 4 == taken and slots.nbytes == 20


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80), st.integers(1, 4))
def test_work_is_captured_when_it_repeats(calls: list[tuple[int, bool]], most: int) -> None:
    """Once as it is, then captured, then replayed, of the keys that were used last."""
    done: list[tuple[str, int]] = []
    kept: list[list[Any]] = []  # key, and whether it was captured, from the one used longest ago

    def capture(work: Callable[[], Any]) -> Callable[[], Any] | None:
        number = numbers[-1]
        return None if number == 5 else lambda: done.append(("replay", number))

    numbers: list[int] = []
    graphs = Graphs(capture, most)
    for number, forgets in calls:
        if forgets:
            graphs.clear()
            kept.clear()
        numbers.append(number)
        known = next((each for each in kept if each[0] == number), None)
        graphs.run(number, lambda number=number: done.append(("work", number)))
        assert done[-1] == ("work" if known is None or number == 5 else "replay", number)
        if known is not None:
            kept.remove(known)
        kept.append([number, known is not None])
        del kept[:-most]
        assert len(graphs) == len(kept)


def test_memory_is_found_by_addresses_within_it() -> None:
    device = LateDevice()
    memory = OwnMemory(device)
    places = [memory.allocate(nbytes) for nbytes in (4, 64, 4000)]
    starts = [each for each in places if each is not None]
    assert len(set(starts)) == 3 and len(memory) == 3
    for n, start in enumerate(starts):
        memory.view(start, (1,))[...] = n
    assert [memory.view(start, (1,)).item() for start in starts] == [0, 1, 2]
    last = starts[2]
    whole = memory.view(last, (1000,))
    whole[...] = torch.arange(1000)
    assert torch.equal(memory.view(last + 40, (2, 3), (100, 1)), whole[10:].as_strided((2, 3), (100, 1), 10))
    assert memory.view(last + 4000, (0, 5)).shape == (0, 5)
    for place, shape in ((last + 4, (1024,)), (last - 64 * 200, (1,)), (last + 2, (1,)), (last + 4096, (1,))):
        with pytest.raises(LookupError, match="is in no block"):
            memory.view(place, shape)
    for start in starts:
        memory.release(start)
    with pytest.raises(LookupError):
        memory.view(last, (1,))
    assert not device.blocks and not device.mistakes
    device.close()


def mixtures(rows: int, k: int, experts: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        scores = torch.rand(rows, experts, generator=generator)
        index = scores.argsort(1)[:, :k]
        yield torch.randn(rows, 8, generator=generator), index, torch.rand(rows, k, generator=generator)


def test_a_mixture_is_the_same_however_its_experts_come() -> None:
    from edgekit.runtime.engines.mixture import Mixture

    matrices = torch.randn(6, 8, 8, generator=torch.Generator().manual_seed(1))

    def run(x: Any, counts: list[int], weights: list[Any]) -> Any:
        parts = torch.as_tensor(x).split(counts)
        made = [(part[:, :, None] * w[None]).sum(1) for part, w in zip(parts, weights, strict=True)]
        return torch.cat(made) if isinstance(x, torch.Tensor) else torch.cat(made).numpy()

    for x, index, weight in mixtures(9, 3, 6):
        plain = Mixture(x.numpy(), index.numpy(), weight.numpy(), 6)
        plain.add_together(list(enumerate(matrices)), run)
        for order in itertools.islice(itertools.permutations(range(6)), 0, 720, 97):
            for size in (1, 2, 6):
                mixture = TensorMixture(x, index, weight, 6, "")
                np.testing.assert_array_equal(mixture.counts, plain.counts)
                for start in range(0, 6, size):
                    mixture.add_together([(e, matrices[e]) for e in order[start : start + size]], run)
                np.testing.assert_array_equal(mixture.total().numpy(), plain.total())
    for wrong in (-1, 6):
        index[0, 0] = wrong
        with pytest.raises(EngineFailed, match=f"the router chose experts from .*{wrong}.*; export again$"):
            TensorMixture(x, index, weight, 6, "export again")
