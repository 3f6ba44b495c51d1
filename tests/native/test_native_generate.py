"""A whole generation through the C ABI: event for event that of a sampler that Python drives."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.c_programs import HEADER, compiler, run
from support.checkpoints import write_checkpoint
from support.native_bundles import native_bundle
from support.native_generation import ON_EVENT, Options, Statistics, function, generate, last_error
from support.native_sampler import (
    INVALID_ARGUMENT,
    INVALID_PROMPT,
    NOT_FINITE,
    OK,
    PROMPT_TOO_LONG,
    STOPPED,
    Outcome,
)
from support.sampler_runs import plain
from test_native_session_errors import edit_manifest, flip_byte

from edgekit.export.pipeline import ExportOptions, export
from edgekit.export.quantize import Scheme
from edgekit.flashload import _native
from edgekit.flashload.errors import MalformedFile
from edgekit.runtime import generation
from edgekit.runtime.errors import PromptTooLong
from edgekit.runtime.generation import Settings
from edgekit.runtime.sampling import CoreSampler, Done, SamplerModel, drive
from edgekit.runtime.session.session import Session, SessionOptions
from edgekit.runtime.session.structs import InfoStruct

BUDGET_EXCEEDED, CHECKSUM_MISMATCH, MALFORMED_FILE, UNSUPPORTED_BUNDLE = 12, 8, 9, 11
PROMPT = [7, 3, 300, 21, 5]
LAYERS = {"diffusion_gemma": "num_hidden_layers", "llada": "n_layers", "dream": "num_hidden_layers"}
#: Settings of generations by family: the bundle's own, and ones that reach other parts of its loop.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "diffusion_gemma": [
        {},
        {"seed": 5, "max_new_tokens": 33, "steps": 4, "options": {"entropy_bound": 2.0, "pad_token_id": 0}},
        {"seed": 2**64 - 1, "options": {"canvas_length": 5, "max_length": 30, "confidence_threshold": None}},
    ],
    "llada": [
        {"max_new_tokens": 40},
        {"seed": 3, "max_new_tokens": 21, "steps": 5, "options": {"block_length": 8, "temperature": 0.9}},
        {"max_new_tokens": 16, "options": {"threshold": 0.2, "cfg_scale": 1.5, "stop_at_eos": False}},
    ],
    "dream": [
        {"max_new_tokens": 12},
        {"seed": 9, "max_new_tokens": 24, "steps": 6, "options": {"temperature": 0.8, "top_p": 0.9}},
        {"seed": 4, "max_new_tokens": 9, "steps": 30, "options": {"alg": "origin"}},
    ],
}  # fmt: skip
CASES = [(family, settings) for family, all_of in SETTINGS.items() for settings in all_of]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The bundle of a family, made when it is first asked for. Read only."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            made[family] = native_bundle(folder, family, Scheme("mixed4", 16), **{LAYERS[family]: 2})
        return made[family]

    return of


@pytest.fixture(scope="module")
def session(bundle: Callable[[str], Path]) -> Iterator[Callable[[str], Session]]:
    """An open session of a family, without a budget."""
    opened: dict[str, Session] = {}

    def of(family: str) -> Session:
        if family not in opened:
            opened[family] = Session(bundle(family), SessionOptions(threads=2))
        return opened[family]

    yield of
    for each in opened.values():
        each.close()


def python(
    session: Session,
    prompt: list[int],
    *,
    seed: int = 0,
    max_new_tokens: int | None = None,
    steps: int | None = None,
    options: dict[str, Any] | None = None,
    stop_after: int | None = None,
) -> Outcome:
    """The sampler driven from Python, left after event number `stop_after`."""
    outcome = Outcome([])
    goes_on = bool(options and options.get("continue_prefix"))
    model = SamplerModel(
        session.bundle.manifest.sampler,
        session.vocab_size,
        session.hidden_size,
        canvas_length=session.model.canvas_length,
        encoded=session.pieces if goes_on else (),
        uncached=session.uncached,
    )
    sampler = CoreSampler(
        model, prompt, seed=seed, max_new_tokens=max_new_tokens, steps=steps, options=options
    )
    for event in drive(sampler, session):
        outcome.events.append(plain(event))
        if len(outcome.events) == stop_after:
            break
    outcome.stats = plain(Done(sampler.stats))[1]
    outcome.answer = [token for event in outcome.events if event[0] == "committed" for token in event[2]]
    return outcome


@pytest.mark.parametrize(("family", "settings"), CASES)
def test_a_generation_is_that_of_the_sampler_driven_from_python(
    session: Callable[[str], Session], family: str, settings: dict[str, Any]
) -> None:
    own = session(family)
    expected = python(own, PROMPT, **settings)
    found = generate(own, PROMPT, **settings)
    assert found.status == OK, found.message
    assert found.events == expected.events and len(found.events) > 3
    assert (found.stats, found.answer) == (expected.stats, expected.answer)
    assert found.answer
    assert generate(own, PROMPT, **settings).events == expected.events, "the session is as before"


@pytest.mark.parametrize("family", SETTINGS)
def test_a_stop_is_at_the_event_that_asked_for_it(session: Callable[[str], Session], family: str) -> None:
    own, settings = session(family), SETTINGS[family][1]
    full = python(own, PROMPT, **settings)
    commits = [n for n, event in enumerate(full.events, 1) if event[0] == "committed"]
    for stop in (1, 3, commits[0], commits[-1]):
        expected = python(own, PROMPT, stop_after=stop, **settings)
        found = generate(own, PROMPT, stop_after=stop, **settings)
        assert found.status == STOPPED and "stopped by its callback" in found.message
        assert found.events == expected.events == full.events[:stop]
        assert found.answer == expected.answer and expected.stats is not None
        assert found.stats == expected.stats | {"finish_reason": "cancelled"}
    found = generate(own, PROMPT, stop_after=len(full.events), **settings)
    assert (found.status, found.events) == (OK, full.events), "there is nothing left to stop when it is done"


def without_rows(events: list[Any]) -> list[Any]:
    """How many rows are encoded is what differs with a prefix."""
    kind, done = events[-1]
    return [*events[:-1], (kind, {name: value for name, value in done.items() if name != "rows"})]


def test_a_prefix_can_be_continued(session: Callable[[str], Session]) -> None:
    """A second turn behind what the session has encoded, as Python has it."""
    own, turns = session("diffusion_gemma"), []
    for run_turn in (python, generate):
        own.reset()
        first = run_turn(own, PROMPT, steps=2)
        kept = own.prefix_length
        settings: dict[str, Any] = {"steps": 2, "max_new_tokens": 20, "options": {"continue_prefix": True}}
        second = run_turn(own, [4, 9], **settings)
        turns.append((first.events, kept, second.events, own.prefix_length))
        canvas = own.model.canvas_length or 0
        assert first.answer and len(first.answer) == canvas, "no end token: nothing is left out"
        # The whole conversation at once, in a session that has forgotten it.
        alone = run_turn(own, [*PROMPT, *first.answer, 4, 9], **settings | {"options": {}})
        assert without_rows(alone.events) == without_rows(second.events)
    assert turns[0] == turns[1]
    _, kept, _, longer = turns[0]
    assert kept == len(PROMPT) and longer == kept + canvas + 2 + canvas


def test_what_is_not_encoded_is_counted_and_goes_first(session: Callable[[str], Session]) -> None:
    own = session("diffusion_gemma")
    own.reset()
    first = generate(own, PROMPT, steps=2)
    info = InfoStruct()
    assert own._library.ek_session_get_info(own._handle, ctypes.byref(info)) == OK
    assert first.answer and (info.prefix_length, info.uncached_length) == (len(PROMPT), len(first.answer))
    own.prefill(np.array([4]))
    assert own.prefix_length == len(PROMPT) + len(first.answer) + 1
    assert own._library.ek_session_get_info(own._handle, ctypes.byref(info)) == OK
    assert info.uncached_length == 0
    generate(own, PROMPT, steps=2)
    own.reset()
    assert own._library.ek_session_get_info(own._handle, ctypes.byref(info)) == OK
    assert (info.prefix_length, info.uncached_length) == (0, 0)


def test_callback_options_and_statistics_may_be_left_out(session: Callable[[str], Session]) -> None:
    own = session("diffusion_gemma")
    ids = np.array(PROMPT, dtype=np.int64)
    arguments = (own._handle, ids.ctypes.data, len(ids))
    statistics = Statistics()
    assert function(own)(*arguments, None, ON_EVENT(0), None, ctypes.byref(statistics)) == OK
    expected = python(own, PROMPT)
    assert expected.stats is not None and statistics.forwards == expected.stats["forwards"] > 0
    assert function(own)(*arguments, None, ON_EVENT(0), None, None) == OK


def test_structs_of_other_sizes(session: Callable[[str], Session]) -> None:
    own = session("diffusion_gemma")
    ids = np.array(PROMPT, dtype=np.int64)

    def call(options: Options, statistics: Statistics) -> int:
        given = ctypes.byref(options), ON_EVENT(0), None, ctypes.byref(statistics)
        status: int = function(own)(own._handle, ids.ctypes.data, len(ids), *given)
        return status

    older = Options(max_new_tokens=-5, steps=-5, options=b"[")
    older.struct_size = Options.max_new_tokens.offset
    short = Statistics(projections=-7, canvases=-7)
    short.struct_size = Statistics.projections.offset
    assert call(older, short) == OK
    assert short.forwards > 0 and (short.projections, short.canvases) == (-7, -7)
    for wrong, words in ((0, "struct_size is 0"), (ctypes.sizeof(Options) + 8, "update the library")):
        options = Options()
        options.struct_size = wrong
        assert call(options, Statistics()) == INVALID_ARGUMENT and words in last_error(own)
    none = Statistics(forwards=-7)
    none.struct_size = 3
    assert call(Options(), none) == INVALID_ARGUMENT and none.forwards == -7
    assert call(Options(reserved=1), Statistics()) == INVALID_ARGUMENT and "reserved" in last_error(own)


#: What is wrong with the arguments, and words of the message.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("llada", {"options": "{"}, "the sampler options: not valid JSON (a name in double quotes is expected"),
    ("llada", {"options": ""}, "the sampler options: not valid JSON (a value is expected: line 1, byte 1)"),
    ("llada", {"options": '{"steps": 1, "steps": 2}'}, "'steps' appears twice"),
    ("llada", {"options": '{"temperature": NaN}'}, "NaN is not a JSON number; give a JSON object of"),
    ("llada", {"options": '{"eos_token_ids": [1e999]}'}, "number in line 1 is too large; give a JSON object"),
    ("llada", {"options": "[1, null]"}, "the sampler options are [1, null]; give a JSON object of them"),
    ("llada", {"options": {"temprature": 1}}, "temprature is not a sampling option of this model; options"),
    ("llada", {"options": {"temperature": -1}}, "temperature is -1; use a number from 0 to 1000000"),
    ("llada", {"options": {"block_length": 2.5}}, "block_length is 2.5; use an integer from 1 to 4194304"),
    ("dream", {"max_new_tokens": -1}, "max_new_tokens is -1; use an integer from 1 to 4194304"),
    ("dream", {"steps": 2**62}, f"steps is {2**62}; use an integer from 1 to 4194304"),
    ("dream", {"options": {"mask_token_id": 10**6}}, "mask_token_id 1000000 is outside the model's"),
    ("llada", {"options": {"eot_token_ids": [3, 10**6]}}, "eot_token_ids 1000000 is outside the model's"),
    ("diffusion_gemma", {"options": {"eos_token_ids": [10**6]}}, "eos_token_ids 1000000 is outside the"),
    ("diffusion_gemma", {"options": {"t_min": 0.9}}, "t_max 0.8 is not above t_min 0.9"),
    ("diffusion_gemma", {"max_new_tokens": 256, "options": {"max_length": 5}}, "5 tokens and max_length is"),
    ("diffusion_gemma", {"max_new_tokens": 9, "options": {"max_length": 5}}, "max_length of at least 6"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "words"), WRONG)
def test_wrong_options_are_refused_before_the_first_pass(
    session: Callable[[str], Session], family: str, settings: dict[str, Any], words: str
) -> None:
    found = generate(session(family), PROMPT, **settings)
    assert found.status == INVALID_ARGUMENT and words in found.message and "\n" not in found.message
    assert "export" not in found.message and found.events == []
    assert set((found.stats or {}).values()) == {0, "none"}


def test_wrong_prompts_and_handles_are_refused(session: Callable[[str], Session]) -> None:
    own = session("diffusion_gemma")
    assert "prompt is empty" in generate(own, []).message
    assert generate(own, []).status == generate(own, [3, 384]).status == INVALID_PROMPT
    assert "prompt token 384 at position 1" in generate(own, [3, 384]).message
    assert "prompt token -1 at position 0" in generate(own, [-1]).message
    ids = np.zeros(1, np.int64)
    rest = None, ON_EVENT(0), None, None
    for handle, pointer, count, words in (
        (None, ids.ctypes.data, 1, "session is null"),
        (own._handle, None, 1, "no token ids"),
        (own._handle, ids.ctypes.data, -1, "a prompt of -1 tokens"),
        (own._handle, ids.ctypes.data, 2**63 - 1, "a prompt of 9223372036854775807 tokens"),
    ):
        assert function(own)(handle, pointer, count, *rest) == INVALID_ARGUMENT
        assert words in last_error(own)


@pytest.mark.parametrize("family", SETTINGS)
def test_prompts_beyond_the_model_have_the_sentence_of_python(
    session: Callable[[str], Session], bundle: Callable[[str], Path], family: str
) -> None:
    own, options = session(family), {"block_length": 1} if family == "llada" else {}
    limit = own.model.max_positions
    assert limit in (512, 1024)
    wanted = limit - len(PROMPT)
    if own.model.canvas_length:
        wanted = wanted // own.model.canvas_length * own.model.canvas_length
    fitting = generate(own, PROMPT, max_new_tokens=wanted, options=options, stop_after=1)
    assert fitting.status == STOPPED, fitting.message
    found = generate(own, PROMPT, max_new_tokens=wanted + 1, options=options)
    assert (found.status, found.events) == (PROMPT_TOO_LONG, [])
    with generation.Generator(bundle(family)) as generator, pytest.raises(PromptTooLong) as refused:
        next(generator.generate(PROMPT, Settings(max_new_tokens=wanted + 1, options=options)))
    assert found.message == str(refused.value) and f"pass the model's {limit} positions" in found.message
    if family == "diffusion_gemma":
        own.reset()
        own.prefill(np.arange(20))
        kept = generate(own, PROMPT, max_new_tokens=wanted, options={"continue_prefix": True})
        assert kept.status == PROMPT_TOO_LONG and kept.message.startswith("25 prompt tokens")


@pytest.mark.parametrize("family", SETTINGS)
def test_a_budget_holds_for_longer_generations_than_it_was_planned_for(
    bundle: Callable[[str], Path], family: str
) -> None:
    """The lengths are what edgekit.h says; where a session was opened for less, it plans again."""
    path, new = bundle(family), 40
    settings: dict[str, Any] = {"max_new_tokens": new, "steps": 2}
    with Session(path) as own:
        info = InfoStruct()
        assert own._library.ek_session_get_info(own._handle, ctypes.byref(info)) == OK
        expected = own.model.canvas_length or 0, own.model.max_positions, own.model.causal_prefix
        assert (info.canvas_length, info.max_positions, bool(info.causal_prefix)) == expected
        events = generate(own, PROMPT, **settings).events
    if info.causal_prefix:
        rounded = -(-new // info.canvas_length) * info.canvas_length
        positions, canvas = len(PROMPT) + rounded - info.canvas_length, info.canvas_length
    else:
        positions, canvas = 0, len(PROMPT) + (-(-new // 32) * 32 if family == "llada" else new)
    budget = 8 << 30
    options = SessionOptions(memory_bytes=budget, positions=positions, canvas=canvas)
    with Session(path, options) as own:
        planned = own.plan.needs
        assert generate(own, PROMPT, **settings).events == events and own.plan.needs == planned
    shorter = [replace(options, canvas=canvas - 1)]
    if info.causal_prefix:
        shorter.append(replace(options, positions=positions - 1))
    for less in shorter:
        with Session(path, less) as own:
            before = own.plan
            assert generate(own, PROMPT, **settings).events == events
            assert own.plan.needs > before.needs and own.plan.pinned == before.pinned
            after = own.plan  # which stays
            assert generate(own, PROMPT, **settings).events == events and own.plan == after


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_what_a_budget_has_no_room_for_says_what_is_enough(
    bundle: Callable[[str], Path], family: str
) -> None:
    path = bundle(family)
    least = SessionOptions(memory_bytes=8 << 30, positions=0, canvas=1)
    with Session(path, least) as own:
        small = own.plan.least_memory_bytes
    with Session(path, replace(least, memory_bytes=small)) as own:
        found = generate(own, PROMPT, max_new_tokens=400)
        assert (found.status, found.events) == (BUDGET_EXCEEDED, [])
        assert "is too small; this model and length need at least" in found.message
        assert found.message.endswith("; give that much, or ask for fewer tokens")
        assert found.stats is not None and found.stats["forwards"] == found.stats["prefills"] == 0
        needed = own._library.ek_last_error_bytes()
    assert needed > small
    with Session(path, replace(least, memory_bytes=needed + (32 << 20))) as own:
        assert generate(own, PROMPT, max_new_tokens=400, steps=2).status == OK


@pytest.mark.parametrize("family", ["diffusion_gemma", "llada"])
def test_a_chat_goes_on_within_a_budget(bundle: Callable[[str], Path], family: str) -> None:
    """Of four turns, each longer than what the one before had the session planned for."""
    goes_on = family == "diffusion_gemma"
    settings: dict[str, Any] = {"max_new_tokens": 40, "steps": 2}
    if goes_on:
        settings["options"] = {"continue_prefix": True}

    def chat(session: Session) -> Iterator[Outcome]:
        said: list[int] = []
        for turn in range(4):
            asked = [7 + turn, *PROMPT]
            answer = generate(session, asked if goes_on else said + asked, **settings)
            assert answer.status == OK, answer.message
            yield answer
            said += asked + answer.answer

    with Session(bundle(family)) as own:
        expected = [answer.events for answer in chat(own)]
    lengths = SessionOptions(positions=1, canvas=own.model.canvas_length or 32)
    with Session(bundle(family), replace(lengths, memory_bytes=8 << 30)) as own:
        needs = [own.plan.needs - own.plan.process]
        for turn, answer in enumerate(chat(own)):
            assert answer.events == expected[turn]
            needs.append(own.plan.needs - own.plan.process)
        assert not own.plan.streamed
    assert needs == sorted(set(needs)) and len(needs) == 5


def test_weights_that_give_no_finite_scores_end_the_run(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    write_checkpoint(tmp_path / "checkpoint", "llada", n_layers=1)
    weights = tmp_path / "checkpoint" / "model.safetensors"
    tensors = load_file(weights)
    tensors["model.transformer.ln_f.weight"][:] = 3e38
    save_file(tensors, weights)
    options = ExportOptions("native", scheme=Scheme("bf16"), tile_bytes=8192)
    export(tmp_path / "checkpoint", tmp_path / "bundle", options)
    with Session(tmp_path / "bundle") as own:
        found = generate(own, PROMPT, max_new_tokens=8)
    assert found.status == NOT_FINITE and "are not finite; the weights" in found.message
    assert found.stats is not None and (found.events, found.stats["forwards"]) == ([], 1)
    assert found.stats["finish_reason"] == "none"


@pytest.mark.parametrize(
    ("run_name", "reached"),
    [("layers.1", {"prefills": 0, "canvases": 0}), ("final", {"prefills": 1, "canvases": 1})],
)
def test_a_failed_read_ends_the_run_and_the_session_goes_on(
    bundle: Callable[[str], Path], tmp_path: Path, run_name: str, reached: dict[str, int]
) -> None:
    copy = Path(shutil.copytree(bundle("diffusion_gemma"), tmp_path / "bundle"))
    with Session(copy, SessionOptions(resident_bytes=0)) as own:
        repair = flip_byte(copy, run_name)
        found = generate(own, PROMPT)
        assert found.status == CHECKSUM_MISMATCH and run_name in found.message and found.events == []
        assert found.stats is not None and reached.items() <= found.stats.items()
        assert found.stats["finish_reason"] == "none"
        repair()
        again = generate(own, PROMPT)
        assert again.status == OK and again.events == python(own, PROMPT).events


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (
            lambda m: m["sampler"].update(name="mdlm"),
            UNSUPPORTED_BUNDLE,
            "no sampler for model family 'mdlm'",
        ),
        (lambda m: m["sampler"].pop("name"), MALFORMED_FILE, "name"),
        (lambda m: m["sampler"].update(config=[]), MALFORMED_FILE, "edgekit.json"),
        (lambda m: m["sampler"].update(name="diffusion_gemma"), 15, "encodes no prefix"),
        (lambda m: m["sampler"]["config"].update(block_length="x"), INVALID_ARGUMENT, "block_length is 'x'"),
        (lambda m: m["model"].pop("max_positions"), OK, ""),
    ],
    ids=["another loop", "no name", "no config", "a loop of another kind", "a bad option", "no positions"],
)
def test_what_a_manifest_says_about_the_loop_is_checked(
    bundle: Callable[[str], Path],
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    status: int,
    words: str,
) -> None:
    copy = Path(shutil.copytree(bundle("llada"), tmp_path / "bundle"))
    edit_manifest(copy, lambda manifest: change(manifest) and None)
    if status == MALFORMED_FILE:
        with pytest.raises(MalformedFile, match=words):
            Session(copy)
        return
    with Session(copy) as own:
        found = generate(own, PROMPT, max_new_tokens=16 if status else 600, steps=1, stop_after=1)
    if status == OK:  # nothing is known about positions, so that nothing is refused
        assert (found.status, len(found.events)) == (STOPPED, 1)
    else:
        assert found.status == status and words in found.message


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_the_program_of_the_page_prints_the_answer(
    shipped_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "c.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    program = program.replace("Why is the sky blue?", "Copy this: red 7")
    (tmp_path / "answer.c").write_text(program, encoding="utf-8")
    core = _native.load().path
    run(compiler("cc", "gcc", "clang"), "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
        "-I", HEADER.parent, tmp_path / "answer.c", core, f"-Wl,-rpath,{core.parent}",
        "-o", tmp_path / "answer")  # fmt: skip
    shutil.copytree(shipped_bundle("tiny-llada", "native"), tmp_path / "llada")
    done = subprocess.run([tmp_path / "answer"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "red 7\n", "")
    shutil.rmtree(tmp_path / "llada")
    failed = subprocess.run([tmp_path / "answer"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "llada" in failed.stderr and failed.stdout == ""
