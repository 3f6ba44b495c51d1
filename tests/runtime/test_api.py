"""Edgekit in Python: signatures, documentation that runs, prompts of every kind, and wrong ones."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekit
from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import InvalidRequest
from edgekit.runtime.api import answer, chat, model, options, prompt, search
from edgekit.runtime.bundle import choice

TEXT = "Copy this: red 7"


@pytest.fixture(scope="module")
def gemma(shipped_bundle: Any) -> Iterator[edgekit.Model]:
    with edgekit.load(shipped_bundle("tiny-gemma")) as opened:
        yield opened


@pytest.fixture(scope="module")
def llada(shipped_bundle: Any) -> Iterator[edgekit.Model]:
    with edgekit.load(shipped_bundle("tiny-llada")) as opened:
        yield opened


@pytest.fixture(params=["gemma", "llada"])
def either(request: pytest.FixtureRequest) -> edgekit.Model:
    return request.getfixturevalue(request.param)


# --- the package --------------------------------------------------------------------------------------------


def test_importing_it_brings_in_nothing_else() -> None:
    code = (
        "import sys, edgekit\n"
        "assert 'load' in dir(edgekit) and edgekit.__version__\n"
        "heavy = {'tokenizers', 'jinja2', 'torch', 'onnxruntime', 'click'}\n"
        "print(*sorted((heavy | {'numpy', 'edgekit.runtime'}) & set(sys.modules)))\n"
        "edgekit.load\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_every_name_that_it_promises_is_there() -> None:
    edgekit.load  # noqa: B018 - brings in modules of the package
    listed = [name for name in dir(edgekit) if not (name.startswith("__") and name.endswith("__"))]
    assert listed == [name for name in edgekit.__all__ if name != "__version__"]
    assert {"__version__", "__doc__", "__path__"} <= set(dir(edgekit))
    for name in edgekit.__all__:
        assert getattr(edgekit, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'lode'"):
        edgekit.lode  # noqa: B018


def test_it_is_a_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edgekit", "--version"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"edgekit {edgekit.__version__}\n")


# --- what must stay as it is --------------------------------------------------------------------------------

SEEDED = (
    "steps: 'int | None' = None, seed: 'int' = 0, deadline_seconds: 'float | None' = None, **settings: 'Any'"
)
SAMPLING = f"max_new_tokens: 'int | None' = None, {SEEDED}"
TEMPLATE = (
    "system: 'str | None' = None, raw: 'bool' = False, "
    "chat_template_kwargs: 'Mapping[str, Any] | None' = None"
)
SIGNATURES = {
    "discard": "(folder: 'str | Path') -> 'None'",
    "fetch": "(sources: 'str | Sequence[str]', folder: 'str | Path', *, sha256: 'str | None' = None, "
    "formats: 'Sequence[str] | None' = None, system: 'tuple[str, str] | None' = None, "
    "connections: 'int' = 4, compare: 'bool' = False, "
    "progress: 'Callable[[Progress], object] | None' = None, "
    "trouble: 'Callable[[str], object] | None' = None) -> 'Arrived'",
    "load": "(bundle: 'str | os.PathLike[str]', *, memory: 'int | str | None' = None, "
    "resident: 'int | str | None' = None, threads: 'int | None' = None, "
    "engine: 'str | MakeEngine | None' = None, adapter: 'str | None' = None) -> 'Model'",
    "Model.generate": f"(self, prompt: 'Prompt', *, {TEMPLATE}, {SAMPLING}) -> 'Answer'",
    "Model.stream": f"(self, prompt: 'Prompt', *, {TEMPLATE}, {SAMPLING}) -> 'Iterator[str]'",
    "Model.events": f"(self, prompt: 'Prompt', *, {TEMPLATE}, {SAMPLING}) -> 'Iterator[Event]'",
    "Model.infill": f"(self, prompt: 'Prompt', template: 'Template', *, revise: 'bool' = False, {TEMPLATE}, "
    f"{SEEDED}) -> 'Answer'",
    "Model.infill_events": "(self, prompt: 'Prompt', template: 'Template', *, revise: 'bool' = False, "
    f"{TEMPLATE}, {SEEDED}) -> 'Iterator[Event]'",
    "Model.chat": f"(self, *, {TEMPLATE}, resume: 'str | os.PathLike[str] | None' = None) -> 'Chat'",
    "Model.search": "(self, prompt: 'Prompt', *, verifier: 'Judging', branches: 'int | None' = None, "
    "share: 'float' = 0.8, method: 'Method' = 'best_of', every: 'int | None' = None, "
    f"rounds: 'int | None' = None, depth: 'float | None' = None, {TEMPLATE}, "
    "max_new_tokens: 'int | None' = None, steps: 'int | None' = None, seed: 'int' = 0, "
    "**settings: 'Any') -> 'SearchResult'",
    "Model.options": "(self, **settings: 'Any') -> 'tuple[Option, ...]'",
    "Model.encode": f"(self, prompt: 'Prompt', *, {TEMPLATE}) -> 'tuple[int, ...]'",
    "Model.decode": "(self, ids: 'Iterable[int]', *, skip_special: 'bool' = True) -> 'str'",
    "Model.close": "(self) -> 'None'",
    "Chat.generate": f"(self, prompt: 'Prompt', *, {SAMPLING}) -> 'Answer'",
    "Chat.stream": f"(self, prompt: 'Prompt', *, {SAMPLING}) -> 'Iterator[str]'",
    "Chat.events": f"(self, prompt: 'Prompt', *, {SAMPLING}) -> 'Iterator[Event]'",
    "Chat.undo": "(self) -> 'None'",
    "Chat.save": "(self, path: 'str | os.PathLike[str]', *, bits: 'int | None' = None) -> 'None'",
}
FIELDS = {
    "Arrived": [
        "folder: Path", "nbytes: int", "fetched: int", "copied: int", "found: int", "damaged: int",
        "current: bool",
        "chosen: str",
    ],
    "Answer": ["text: str", "ids: tuple[int, ...]", "prompt_ids: tuple[int, ...]", "statistics: Statistics"],
    "Draft": [
        "canvas: int", "canvases: int", "step: int", "steps: int", "start: int", "ids: tuple[int, ...]",
        "accepted: tuple[bool, ...]", "bytes_read: int",
    ],
    "Committed": ["canvas: int", "ids: tuple[int, ...]", "text: str"],
    "Done": ["answer: Answer"],
    "Statistics": [
        "steps: int", "forwards: int", "prefills: int", "rows: int", "tokens: int", "prompt_tokens: int",
        "reused_tokens: int", "canvases: int", "finish_reason: FinishReason", "seconds: float",
        "compute_seconds: float", "wait_seconds: float", "bytes_read: int", "bytes_per_step: int",
        "resident_bytes: int", "peak_bytes: int", "memory_bytes: int | None",
    ],
    "Attempt": [
        "text: str", "ids: tuple[int, ...]", "prompt_ids: tuple[int, ...]", "final: bool", "branch: int",
        "step: int", "mask_id: int | None",
    ],
    "SearchBranch": [
        "number: int", "seed: int", "parent: int | None", "forked_at: int", "steps: int",
        "score: float | None", "pruned: bool", "text: str", "ids: tuple[int, ...]",
    ],
    "SearchStatistics": [
        "shared_steps: int", "passes: int", "rows: int", "bytes_read: int", "seconds: float",
    ],
    "SearchResult": [
        "answer: Answer", "score: float", "best: int", "branches: tuple[SearchBranch, ...]",
        "events: tuple[Event, ...]", "statistics: SearchStatistics",
    ],
    "Option": [
        "name: str", "type: OptionType", "default: Any", "minimum: float | None", "maximum: float | None",
        "above_minimum: bool", "choices: tuple[str, ...]", "optional: bool", "help: str",
    ],
}  # fmt: skip
PROPERTIES = {
    "Model": {"family", "path", "mask_id"},
    "Chat": {"messages", "ids", "raw", "turns"},
    "Statistics": {"tokens_per_step", "tokens_per_second"},
    "Draft": {"progress"},
    "Attempt": {"open"},
}
NAMES = [
    "Answer", "Arrived", "Attempt", "BudgetExceeded", "BundleError", "Chat", "ChatTemplateError",
    "Committed", "Done", "Draft", "EdgekitError", "Event", "FetchFailed", "GenerationEnded",
    "InvalidOption", "InvalidPrompt", "Message", "Model", "Option", "Prompt", "PromptTooLong",
    "SearchBranch", "SearchResult", "SearchStatistics", "Statistics", "UnsupportedBundle", "Verifier",
    "VerifierFailed", "__version__", "discard", "fetch", "load",
]  # fmt: skip


def public(cls: type) -> set[str]:
    return {name for name in vars(cls) if not name.startswith("_")}


def test_names_and_signatures_are_frozen() -> None:
    """Whoever changes these breaks programs that others have written."""
    assert edgekit.__all__ == NAMES
    for name, expected in SIGNATURES.items():
        owner, _, method = name.rpartition(".")
        found = getattr(getattr(edgekit, owner) if owner else edgekit, method)
        assert str(inspect.signature(found)) == expected, name


def test_fields_and_properties_are_frozen() -> None:
    for name, expected in FIELDS.items():
        cls = getattr(edgekit, name)
        assert [f"{field.name}: {field.type}" for field in dataclasses.fields(cls)] == expected
        assert cls.__dataclass_params__.frozen and cls.__dataclass_params__.eq
    for name, properties in PROPERTIES.items():
        cls = getattr(edgekit, name)
        assert {n for n, value in vars(cls).items() if isinstance(value, property)} - {"_state"} == properties
        methods = {method.partition(".")[2] for method in SIGNATURES if method.startswith(f"{name}.")}
        fields = {line.partition(":")[0] for line in FIELDS.get(name, [])}
        # The rest is for the modules of the interface alone, and says so.
        rest = {
            "Model": {"run", "encoded", "digest", "save_text", "resume_text"},
            "Chat": {"resumed"},
        }.get(name, set())
        assert public(cls) - fields - properties - methods == rest


def test_errors_are_errors_of_edgekit() -> None:
    for name in ("BudgetExceeded", "BundleError", "ChatTemplateError", "GenerationEnded", "InvalidOption"):
        assert issubclass(getattr(edgekit, name), edgekit.EdgekitError)
    assert issubclass(edgekit.InvalidPrompt, edgekit.EdgekitError)
    assert issubclass(edgekit.PromptTooLong, edgekit.EdgekitError)


@pytest.mark.parametrize("module", [answer, chat, model, options, prompt, search])
def test_what_the_documentation_shows_is_true(module: Any, gemma: edgekit.Model, tmp_path: Path) -> None:
    names = {"edgekit": edgekit, "model": gemma, "bundle": gemma.path, "folder": tmp_path}
    result = doctest.testmod(module, extraglobs=names)
    assert result.failed == 0
    assert result.attempted or module is prompt


def test_every_public_name_is_documented() -> None:
    for name, properties in PROPERTIES.items():
        cls = getattr(edgekit, name)
        for member in {cls, *(getattr(cls, p) for p in properties)}:
            assert member.__doc__
    for name in SIGNATURES:
        owner, _, method = name.rpartition(".")
        assert getattr(getattr(edgekit, owner) if owner else edgekit, method).__doc__


# --- answers ------------------------------------------------------------------------------------------------


def test_prompts_of_every_kind_are_one_prompt(either: edgekit.Model) -> None:
    expected = either.generate(TEXT, seed=3)
    assert expected.text and expected.ids
    ids = either.encode(TEXT)
    assert expected.prompt_ids == ids
    message = {"role": "user", "content": TEXT}
    for same in ([message], (message,), list(ids), np.array(ids), np.array(ids, np.int32), iter(ids)):
        found = either.generate(same, seed=3)
        assert (found.text, found.ids, found.prompt_ids) == (expected.text, expected.ids, ids)
    raw = either.encode(TEXT, raw=True)
    assert raw != ids and either.decode(raw) == TEXT
    assert either.generate(TEXT, raw=True, seed=3).prompt_ids == raw
    system = either.encode(TEXT, system="Be brief.")
    assert system == either.encode([{"role": "system", "content": "Be brief."}, message]) != ids


def test_the_three_ways_of_generating_agree(either: edgekit.Model) -> None:
    events = list(either.events(TEXT, seed=3))
    done, whole = events[-1], either.generate(TEXT, seed=3)
    assert isinstance(done, edgekit.Done)
    assert (done.answer.text, done.answer.ids) == (whole.text, whole.ids)
    assert "".join(either.stream(TEXT, seed=3)) == whole.text == either.decode(whole.ids)
    drafts = [e for e in events if isinstance(e, edgekit.Draft)]
    committed = [e for e in events if isinstance(e, edgekit.Committed)]
    assert len(drafts) + len(committed) + 1 == len(events)
    assert sum((e.ids for e in committed), ()) == whole.ids
    assert "".join(e.text for e in committed) == whole.text
    assert len(drafts) == whole.statistics.steps
    for draft in drafts:
        assert len(draft.ids) == len(draft.accepted) > 0
        assert (
            1 <= draft.step <= draft.steps and 0 <= draft.canvas < draft.canvases and 0 < draft.progress <= 1
        )
    again = [e for e in either.events(TEXT, seed=3) if not isinstance(e, edgekit.Done)]
    assert again == events[:-1], "equal seeds give equal events, which can be compared"
    assert pickle.loads(pickle.dumps(events)) == events


def test_an_answer_holds_no_padding(gemma: edgekit.Model) -> None:
    found = gemma.generate(TEXT, seed=3)
    assert found.statistics.finish_reason == "eos"
    assert found.statistics.tokens == len(found.ids) < 128
    assert gemma.decode(found.ids[-1:], skip_special=False) == "<turn|>"


def test_statistics_are_of_this_generation(gemma: edgekit.Model, shipped_bundle: Any) -> None:
    with edgekit.load(shipped_bundle("tiny-gemma"), memory="8GB", resident=0) as streamed:
        for _ in range(2):
            found = streamed.generate(TEXT, seed=3, steps=2, stability_threshold=None).statistics
            assert found.steps == found.forwards == 2 and found.memory_bytes == 8 * 10**9
            assert 2 * found.bytes_per_step < found.bytes_read + found.bytes_per_step
            assert 0 < found.bytes_read <= 4 * found.bytes_per_step
            assert found.peak_bytes < 8 * 10**9 and found.seconds > 0 and found.tokens_per_second > 0
            assert found.tokens_per_step == found.tokens / 2 and found.resident_bytes == 0
        drafts = [e for e in streamed.events(TEXT, seed=3, steps=2) if isinstance(e, edgekit.Draft)]
        assert 0 < drafts[0].bytes_read <= drafts[-1].bytes_read
    assert gemma.generate(TEXT).statistics.bytes_read == 0


# --- settings -----------------------------------------------------------------------------------------------


def test_settings_have_the_names_of_the_field(llada: edgekit.Model, gemma: edgekit.Model) -> None:
    known = {option.name: option for option in llada.options()}
    assert {
        "temperature",
        "block_length",
        "threshold",
        "steps",
        "max_new_tokens",
        "seed",
        "cfg_scale",
    } <= set(known)
    assert known["block_length"].default == 32 and known["max_new_tokens"].default == 128
    assert known["threshold"].default is None and known["threshold"].optional
    assert (known["threshold"].minimum, known["threshold"].above_minimum, known["threshold"].maximum) == (
        0,
        True,
        1,
    )
    assert known["remasking"].choices == ("low_confidence", "random") and known["remasking"].type == "str"
    assert all(option.help.endswith(".") for option in (*llada.options(), *gemma.options()))
    assert {o.name: o.default for o in llada.options(max_new_tokens=40, block_length=20)}[
        "max_new_tokens"
    ] == 40
    assert {o.name for o in gemma.options()}.isdisjoint(
        {"continue_prefix", "ignored_keys", "max_denoising_steps"}
    )
    few = llada.generate(TEXT, threshold=0.5, max_new_tokens=32, block_length=32)
    many = llada.generate(TEXT, steps=32, max_new_tokens=32)
    assert few.statistics.steps < many.statistics.steps


def test_the_bounds_that_options_show_hold(either: edgekit.Model) -> None:
    """No more is taken than is shown, and a bound is shown wherever there is one."""
    known = {option.name: option for option in either.options()}
    assert known["steps"].maximum == known["max_new_tokens"].maximum == 1 << 22
    assert known["seed"].maximum == 2**64 - 1
    for option in known.values():
        if option.type not in ("int", "float"):
            continue
        for bound, beyond in ((option.minimum, -1), (option.maximum, 1)):
            if bound is None:
                continue
            with pytest.raises(edgekit.InvalidOption, match="; use an? |outside the model's vocabulary"):
                either.stream(TEXT, **{option.name: bound + beyond})
            if not (option.above_minimum and bound == option.minimum):
                try:
                    either.stream(TEXT, **{option.name: bound})
                except edgekit.InvalidOption as error:  # for another reason than its range
                    assert "; use an integer" not in str(error) and "; use a number" not in str(error)
        if option.type == "int" and option.maximum is None:
            either.stream(TEXT, **{option.name: 10**30})


def test_every_option_can_be_given_its_default(either: edgekit.Model) -> None:
    given = {option.name: option.default for option in either.options()}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    expected = either.generate(TEXT, max_new_tokens=32)
    assert either.generate(TEXT, **{**given, "max_new_tokens": 32}).ids == expected.ids


class Faulty:
    def __index__(self) -> int:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no words")


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
for _ in range(10_000):
    ENDLESS = [ENDLESS]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temprature": 1}, "temprature is not a sampling option of this model"),
        ({"max_length": 3}, "tokens and max_length is 3; use a max_length of at least "),
        (
            {"eos_token_ids": [3, 99999]},
            "eos_token_ids 99999 is outside the model's vocabulary of 512 tokens",
        ),
        (
            {"max_denoising_steps": 1, "steps": 5},
            "steps is given twice, as steps and as max_denoising_steps;",
        ),
        ({"eos_token_id": 1, "eos_token_ids": [1]}, "eos_token_ids is given twice, as eos_token_id and as"),
        ({"entropy_bound": -1}, "entropy_bound is -1; use a number above 0"),
        ({"seed": -1}, "seed is -1; use an integer"),
        ({"seed": 1.5}, "seed is 1.5; use an integer"),
        ({"steps": 0}, "steps is 0; use an integer"),
        ({"continue_prefix": True}, "use chat()"),
        ({"steps": 4.0}, "steps is 4.0; use an integer"),
        ({"steps": 10**5000}, "steps is a value of type int; use"),
        ({"t_max": Fraction(10**400)}, "t_max is Fraction("),
        ({"eos_token_ids": [Fraction(10**400)]}, "eos_token_ids is [Fraction("),
        ({"eos_token_ids": ENDLESS}, "eos_token_ids is a value of type list; use"),
        ({"t_max": Faulty()}, "t_max is a value of type Faulty; use"),
        ({"seed": Faulty()}, "seed is a value of type Faulty; use"),
        ({"a\nb": 1}, r"'a\nb' is not a sampling option"),
        ({"": 1}, "'' is not a sampling option"),
    ],
)
def test_wrong_settings_are_refused_when_they_are_given(
    gemma: edgekit.Model, settings: dict[str, Any], said: str
) -> None:
    for call in (gemma.generate, gemma.stream, gemma.events, gemma.chat().stream):
        with pytest.raises(edgekit.InvalidOption) as refused:
            call(TEXT, **settings)
        assert said in str(refused.value) and "\n" not in str(refused.value)


def test_settings_may_be_numbers_of_other_libraries(gemma: edgekit.Model, llada: edgekit.Model) -> None:
    class Index:
        def __index__(self) -> int:
            return 4

    expected = gemma.generate(TEXT, seed=3, steps=4, t_max=0.5, eos_token_ids=[1, 6], max_new_tokens=128)
    found = gemma.generate(
        TEXT,
        seed=np.int64(3),
        steps=Index(),  # type: ignore[arg-type]
        t_max=np.float32(0.5),
        eos_token_ids=np.array([1, 6]),
        max_new_tokens=np.array(128),  # type: ignore[arg-type]
    )
    assert found.ids == expected.ids and found.statistics.steps == expected.statistics.steps
    assert (
        gemma.chat().generate(TEXT, seed=np.uint64(2**64 - 1)).ids == gemma.generate(TEXT, seed=2**64 - 1).ids
    )
    stopped = {o.name: o.default for o in llada.options(stop_at_eos=np.bool_(False), steps=np.uint8(64))}
    assert stopped["stop_at_eos"] is False and type(stopped["steps"]) is int
    whole = {"memory": np.int64(8 * 10**9), "resident": np.int32(0), "threads": np.int64(1)}
    with edgekit.load(gemma.path, **whole) as opened:  # type: ignore[arg-type]
        assert opened.generate(TEXT, steps=2).statistics.memory_bytes == 8 * 10**9
    for wrong in (
        {"seed": np.float32(3)}, {"seed": np.bool_(True)}, {"steps": np.array([3])}, {"t_max": 0.5j},
        {"t_max": np.float32("nan")}, {"t_max": np.array([0.5, 0.6])}, {"seed": np.array(1.5)},
        {"steps": np.zeros((2, 2), int)}, {"t_max": Fraction(-1, 2)},
    ):  # fmt: skip
        with pytest.raises(edgekit.InvalidOption) as refused:
            gemma.generate(TEXT, **wrong)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)


def test_unknown_settings_are_answered_with_the_list_of_options(either: edgekit.Model) -> None:
    known = [option.name for option in either.options()]
    for call in (lambda: either.stream(TEXT, zzzzzz=1), lambda: either.options(zzzzzz=1)):
        with pytest.raises(edgekit.InvalidOption) as refused:
            call()
        told = str(refused.value).partition("options are: ")[2].split(", ")
        assert sorted(told) == sorted(known) and told[:3] == known[:3] == ["max_new_tokens", "steps", "seed"]
    with pytest.raises(edgekit.InvalidOption, match="did you mean steps"):
        either.options(stepz=1)
    with pytest.raises(edgekit.InvalidOption, match="^mode is a sampling option of block, not of this mod"):
        either.options(mode="speculative")
    with pytest.raises(edgekit.InvalidOption, match="seed is 'x'; use an integer"):
        either.options(seed="x")


def test_other_names_of_settings_are_taken(llada: edgekit.Model) -> None:
    assert {o.name: o.default for o in llada.options(gen_length=64)}["max_new_tokens"] == 64
    with pytest.raises(edgekit.InvalidOption, match="twice, as max_new_tokens and as gen_length; leave one"):
        llada.options(max_new_tokens=32, gen_length=64)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        (5, {}, "a prompt of type int is not understood"),
        (None, {}, "a prompt of type NoneType"),
        (b"Hi", {}, "a prompt of type bytes"),
        ({"role": "user"}, {}, "a prompt of type dict"),
        ([1, "a"], {}, "item 1 of the prompt is of type str"),
        ([1.5], {}, "item 0 of the prompt is of type float"),
        ([True], {}, "item 0 of the prompt is of type bool"),
        (np.zeros((1, 3), int), {}, "the prompt has shape (1, 3)"),
        ([{"content": "x"}], {}, 'message 0 is no dict with a "role"'),
        ([{"role": "user", "content": "x"}, 3], {}, "message 1 is no dict"),
        ([1, 2], {"system": "x"}, "token ids are taken as they are, so there is no place for system"),
        ("x", {"raw": True, "system": "x"}, "raw leaves the chat template out"),
        ([{"role": "user", "content": "x"}], {"raw": True}, "which messages need"),
        ([10**6], {}, "outside the model's vocabulary"),
        ([], {}, "the prompt is empty"),
        ("", {}, "the prompt is empty"),
        (" \n", {"raw": True}, "the prompt is empty"),
        ([10**30], {}, f"prompt token {10**30} at position 0 is outside the model's vocabulary of 512"),
        ([1, -(10**30)], {}, f"prompt token -{10**30} at position 1 is outside"),
        ([{"role": "user"}], {}, 'message 0 has no "content"'),
        (
            [USER, {"role": "asistant", "content": "x"}],
            {},
            "message 1: unknown role 'asistant'; did you mean assistant? supported: system, user,",
        ),
        ([{"role": "", "content": "x"}], {}, "message 0: unknown role ''; supported: system"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": []}], {}, 'message 1 has no "content"'),
        ([{"role": "user", "content": 3}], {}, "the content of message 0 is of type int; give text"),
        ([{"role": "user", "content": {"text": "x"}}], {}, "the content of message 0 is of type dict"),
        ([{"role": "user", "content": ["x"]}], {}, "part 0 of the content of message 0 is no text; write"),
        (
            [{"role": "user", "content": [{"type": 3, "text": "x"}]}],
            {},
            "part 0 of the content of message 0 is no text",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            {},
            "part 0 of the content of message 0 is no text",
        ),
        (
            [
                USER,
                {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "url": "y"}]},
            ],
            {},
            "part 1 of the content of message 1 is of type 'image'; only text is supported",
        ),
        ("x", {"system": 3}, "system is of type int; give text"),
        ("x", {"raw": "yes"}, "raw is 'yes'; use True or False"),
        ("x", {"chat_template_kwargs": 3}, "chat_template_kwargs is 3; give a dict of variables"),
        ("x", {"chat_template_kwargs": {3: 4}}, "chat_template_kwargs is {3: 4}; give a dict of variables"),
        ("x", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs has messages"),
    ],
)
def test_wrong_prompts_are_refused(gemma: edgekit.Model, given: Any, settings: Any, said: str) -> None:
    with pytest.raises(edgekit.InvalidPrompt) as refused:
        gemma.generate(given, **settings)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("given", ["", " \n", "\ud800", [], [-1], [10**30]])
def test_prompts_are_refused_alike_below_the_api(gemma: edgekit.Model, given: Any) -> None:
    said = []
    for call in (gemma.generate, lambda prompt: list(gemma._generator.generate(prompt))):
        with pytest.raises(edgekit.InvalidPrompt) as refused:
            call(given)
        said.append(str(refused.value).partition(";")[0])
    assert said[0] == said[1]


@pytest.mark.parametrize("given", ["", " ", [-1], [{"role": "user", "content": 3}], [{"role": "user"}]])
def test_wrong_prompts_of_a_chat_are_refused(gemma: edgekit.Model, given: Any) -> None:
    talk = gemma.chat()
    for call in (talk.generate, talk.stream):
        with pytest.raises(edgekit.InvalidPrompt) as refused:
            call(given)
        assert "download" not in str(refused.value) and "\n" not in str(refused.value)
    for wrong in ({"system": 3}, {"raw": 1}, {"chat_template_kwargs": 3}):
        with pytest.raises(edgekit.InvalidPrompt, match=next(iter(wrong))):
            gemma.chat(**wrong)


def test_text_parts_are_one_text(gemma: edgekit.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "text", "text": "Copy this: "}, {"type": "text", "text": "red 7"}]
    # Of a template that knows no parts.
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    for templates in (gemma._tokenizer.chat_templates, {"default": template}):
        monkeypatch.setattr(gemma._tokenizer, "chat_templates", templates)
        monkeypatch.setattr(gemma._tokenizer, "_templates", {})
        assert gemma.encode([{"role": "user", "content": parts}]) == gemma.encode(TEXT)
    talk = gemma.chat()
    talk.generate([{"role": "user", "content": parts}], max_new_tokens=8)
    assert talk.messages[0] == {"role": "user", "content": TEXT}


def test_calls_of_tools_need_no_content(gemma: edgekit.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content or m.tool_calls[0].name }}{% endfor %}"
    monkeypatch.setattr(gemma._tokenizer, "chat_templates", {"default": template})
    monkeypatch.setattr(gemma._tokenizer, "_templates", {})
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    ids = gemma.encode([{"role": "user", "content": "x"}, call, {"role": "tool", "content": "7"}])
    assert gemma.decode(ids, skip_special=False) == "<user>x<assistant>add<tool>7"


def test_lone_surrogates_are_found_where_they_are_given(
    gemma: edgekit.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = {"role": "user", "content": "ab\udc80"}
    for given, settings, said in (
        ("\udc80", {}, "the prompt is not UTF-8 (character 0 is a lone surrogate)"),
        ([message], {}, "the content of message 0 is not UTF-8 (character 2 is"),
        ("x", {"system": "\udc80"}, "system is not UTF-8 (character 0 is"),
    ):
        for call in (gemma.encode, gemma.generate):
            with pytest.raises(edgekit.InvalidPrompt) as refused:
                call(given, **settings)
            assert str(refused.value).startswith(said)
        if not settings:
            with pytest.raises(edgekit.InvalidPrompt, match="is not UTF-8"):
                gemma.chat().generate(given)
    with pytest.raises(edgekit.InvalidPrompt, match="system is not UTF-8"):
        gemma.chat(system="\udc80")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.name or nick or m.content }}{% endfor %}"
    monkeypatch.setattr(gemma._tokenizer, "chat_templates", {"default": template})
    monkeypatch.setattr(gemma._tokenizer, "_templates", {})
    for wrong in ({"role": "user", "content": "x", "name": "\udc80"}, USER):
        with pytest.raises(edgekit.InvalidPrompt, match="not UTF-8"):
            gemma.encode([wrong], chat_template_kwargs={"nick": "\udc80"})


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([-1], "token -1 at position 0 is outside the model's vocabulary of 512 tokens"),
        ([3, 10**9], "token 1000000000 at position 1 is outside the model's vocabulary of 512 tokens"),
        ("abc", "a list of ids of type str is not understood; give token ids"),
        (3, "a list of ids of type int is not understood"),
        ([1.5], "item 0 of the list of ids is of type float; give token ids (integers)"),
        (np.zeros((1, 3), int), "the list of ids has shape (1, 3)"),
    ],
)
def test_only_ids_of_the_model_are_decoded(gemma: edgekit.Model, ids: Any, said: str) -> None:
    with pytest.raises(edgekit.InvalidPrompt) as refused:
        gemma.decode(ids)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert gemma.decode(np.array(gemma.encode("Hi", raw=True))) == "Hi"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": "lots"}, "memory: size 'lots' is not understood"),
        ({"memory": 0}, "memory is 0; use at least 1"),
        ({"memory": 1.5}, "memory is 1.5; use a number of bytes"),
        ({"resident": -1}, "resident is -1; use at least 0"),
        ({"memory": 2**63}, "memory is beyond what any computer has"),
        ({"memory": "1e30"}, "memory: size '1e30' is beyond what any computer has"),
        ({"threads": 0}, "threads is 0; use an integer from 1 to 1024"),
        ({"threads": 10**6}, "threads is 1000000; use an integer from 1 to 1024"),
        ({"threads": True}, "threads is True; use an integer from 1 to 1024"),
        ({"engine": "tpu"}, "unknown engine 'tpu'"),
        ({"engine": "onyx"}, "unknown engine 'onyx'; did you mean onnx?"),
        ({"engine": 3}, "unknown engine 3"),
        ({"engine": np.array([1, 2])}, "unknown engine array([1, 2])"),
        ({"memory": -(10**5000)}, "memory is a value of type int; use at least 1"),
        ({"resident": [Faulty()]}, "resident is a value of type list; use a number of bytes"),
    ],
)
def test_wrong_arguments_of_load_are_refused(gemma: edgekit.Model, given: Any, said: str) -> None:
    with pytest.raises(edgekit.InvalidOption) as refused:
        edgekit.load(gemma.path, **given)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_bundle_for_another_engine_is_refused(gemma: edgekit.Model) -> None:
    said = "was exported for the native engine, not onnx; export it with --format onnx"
    with pytest.raises(edgekit.UnsupportedBundle, match=said):
        edgekit.load(gemma.path, engine="onnx")


@pytest.mark.parametrize(
    ("engine", "form", "target"),
    [
        ("torch", "native", ""),
        ("tvm", "tvm", ""),
        ("mlx", "mlx", "--target mac "),
        ("qnn", "qnn", "--target android "),
    ],
)
def test_the_format_of_the_engine_is_named_for_a_bundle_of_another(
    tmp_path: Path, engine: str, form: str, target: str
) -> None:
    way = f"with {target}--format {form}$"
    said = f"some: was exported for the onnx engine, not {engine}; export it {way}"
    with pytest.raises(edgekit.UnsupportedBundle, match=said):
        choice.check_written_for("onnx", engine, "some")
    bundle_set.save(BundleSet((Member("a", "coreml", {}),)), tmp_path)
    said = f"has bundles for 'coreml', not for {form}; export one for that {way}"
    with pytest.raises(edgekit.UnsupportedBundle, match=said):
        choice.choose(tmp_path, engine)


def test_the_bundle_of_the_engine_is_named_beside_another_of_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle_set.save(BundleSet((Member("a", "onnx", {}), Member("b", "mlx", {}))), tmp_path)
    (tmp_path / "a").mkdir()
    for given, found in ((tmp_path / "a", tmp_path / "b"), (Path("a"), Path("b")), (Path("a/."), Path("b"))):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(edgekit.UnsupportedBundle, match=f"onnx engine, not mlx; take {found}$"):
            choice.check_written_for("onnx", "mlx", given)
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(edgekit.UnsupportedBundle, match=f"take {tmp_path / 'b'}$"):
        choice.check_written_for("onnx", "mlx", ".")
    with pytest.raises(edgekit.UnsupportedBundle, match="export it with --format native$"):
        choice.check_written_for("onnx", "native", tmp_path / "a")
    (tmp_path / "bundles.json").write_text("{")
    with pytest.raises(edgekit.UnsupportedBundle, match="export it with --target mac --format mlx$"):
        choice.check_written_for("onnx", "mlx", tmp_path / "a")


def test_an_engine_that_is_not_there_is_noticed_at_once(gemma: edgekit.Model, monkeypatch: Any) -> None:
    def missing(name: str) -> None:
        raise edgekit.EdgekitError(f"the {name} engine is not here")

    monkeypatch.setattr(model, "check_available", missing)
    with pytest.raises(edgekit.EdgekitError, match="the native engine is not here"):
        edgekit.load(gemma.path, engine="native")
    edgekit.load(gemma.path).close()


@pytest.mark.parametrize("given", [b"tiny", "", 3, None])
def test_what_names_no_bundle_is_refused(given: Any) -> None:
    with pytest.raises(edgekit.InvalidOption, match=f"bundle is {given!r}; give the path of a folder"):
        edgekit.load(given)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", str(tmp_path), "\ud800", "x" * 10_000):
        with pytest.raises(edgekit.BundleError):
            edgekit.load(path)


def test_limits_have_their_errors(gemma: edgekit.Model) -> None:
    prompt_tokens = len(gemma.encode(TEXT))
    with pytest.raises(edgekit.PromptTooLong) as too_long:
        gemma.generate(TEXT, max_new_tokens=2000)
    assert str(too_long.value).startswith(
        f"{prompt_tokens} prompt tokens and 2000 new tokens, rounded up to 2048, whole canvases of 128, "
        "pass the model's 1024 positions"
    )
    with pytest.raises(edgekit.BudgetExceeded) as refused:
        edgekit.load(gemma.path, memory="10MB")
    assert refused.value.needed_bytes > 10**7
    with edgekit.load(gemma.path, memory=refused.value.needed_bytes + (16 << 20)) as small:
        assert small.generate(TEXT, max_new_tokens=8, steps=1).statistics.steps == 1


# --- life ---------------------------------------------------------------------------------------------------


def test_a_closed_model_says_so(gemma: edgekit.Model) -> None:
    opened = edgekit.load(gemma.path)
    started = opened.events(TEXT)
    next(started)
    with opened:
        pass
    opened.close()
    for call in (lambda: opened.generate(TEXT), lambda: next(started), lambda: opened.chat().generate(TEXT)):
        with pytest.raises(edgekit.GenerationEnded, match="is closed"):
            call()
    assert "closed" in repr(opened)


def test_a_stream_may_be_left_at_any_time(either: edgekit.Model) -> None:
    expected = either.generate(TEXT, seed=3)
    for _ in either.events(TEXT, seed=4):
        break
    assert either.generate(TEXT, seed=3).ids == expected.ids
    kept = either.events(TEXT, seed=4)
    next(kept)
    del kept
    assert either.generate(TEXT, seed=3).ids == expected.ids


def test_a_second_generation_ends_the_first(either: edgekit.Model) -> None:
    expected = list(either.events(TEXT, seed=3))[:-1]
    first, second = either.events(TEXT, seed=4), either.events(TEXT, seed=3)
    next(first)
    found = [next(second)]
    with pytest.raises(edgekit.GenerationEnded, match="has started another one"):
        next(first)
    found += list(second)[:-1]
    assert found == expected
    assert list(first) == []


def test_another_thread_is_refused_while_one_generates(gemma: edgekit.Model, monkeypatch: Any) -> None:
    inside, go_on, raised = threading.Event(), threading.Event(), []
    session_type = type(gemma._generator.session)
    real = session_type.denoise

    def slow(*arguments: Any) -> Any:
        inside.set()
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(session_type, "denoise", slow)
    thread = threading.Thread(target=lambda: raised.append(gemma.generate(TEXT, seed=3).text))
    thread.start()
    assert inside.wait(60)
    for call in (lambda: gemma.generate(TEXT), gemma.close):
        with pytest.raises(edgekit.GenerationEnded, match="in use, by another thread"):
            call()
    go_on.set()
    thread.join()
    monkeypatch.undo()
    assert raised == [gemma.generate(TEXT, seed=3).text]


def test_weights_that_are_replaced_meanwhile_are_an_error_of_edgekit(
    gemma: edgekit.Model, tmp_path: Path
) -> None:
    import shutil

    copy = Path(shutil.copytree(gemma.path, tmp_path / "copy"))
    weights = copy / "weights.safetensors"
    with edgekit.load(copy, memory="8GB", resident=0) as opened:
        events = opened.events(TEXT)
        next(events)
        data = bytearray(weights.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        weights.write_bytes(data)
        with pytest.raises(edgekit.EdgekitError) as refused:
            list(events)
        assert "\n" not in str(refused.value)


def test_a_chat_shows_how_far_it_is(gemma: edgekit.Model) -> None:
    talk = gemma.chat(system="Be brief.")
    assert repr(talk) == f"<edgekit.Chat of 0 turns with <edgekit.Model {str(gemma.path)!r}>>"
    talk.generate(TEXT, steps=2)
    assert "of 1 turn with" in repr(talk)


@pytest.mark.parametrize("attempt", [copy.deepcopy, pickle.dumps])
def test_a_model_is_no_value(llada: edgekit.Model, attempt: Any) -> None:
    for item in (llada, llada.chat()):
        with pytest.raises(InvalidRequest, match="a Model cannot be (copied|pickled); open another one"):
            attempt(item)
