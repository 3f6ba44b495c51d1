"""Fixtures for the tests of the Swift package: real bundles, generations through the C ABI, and passes of
models in segments with every call of a function that they make.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from support import arriving, canvas_text, native_generation
from support.bundles import make_bundle
from support.native_bundles import native_bundle
from support.native_sampler import OK
from tokenizers import Tokenizer

from edgekit.export.quantize import Scheme
from edgekit.runtime.bundle import Bundle
from edgekit.runtime.engines.base import Lengths
from edgekit.runtime.engines.mlx.engine import MlxEngine
from edgekit.runtime.engines.mlx.programs import Function
from edgekit.runtime.sampling import Committed, Draft, HeadOutput, HeadRequest, PhiloxNoise, generate
from edgekit.runtime.session import Session, SessionOptions
from edgekit.runtime.tokenizer.core_text import CoreText

Arrays = Mapping[str, np.ndarray]
#: Name, family, and what opens a session that is recorded.
RecordedSession = tuple[str, str, Callable[[], tuple["Recording", Session]]]
#: Families and settings of the recorded generations.
GENERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("diffusion_gemma", {"seed": 5, "max_new_tokens": 33, "steps": 4, "options": {"entropy_bound": 2.0}}),
    ("llada", {"seed": 3, "max_new_tokens": 21, "steps": 5, "options": {"temperature": 0.9}}),
    ("dream", {"seed": 9, "max_new_tokens": 24, "steps": 6, "options": {"top_p": 0.9, "temperature": 0.8}}),
]
PROMPT = [7, 3, 300, 21, 5]


def write(folder: Path) -> None:
    """All fixtures, into `folder`."""
    bundles: dict[str, str] = {}
    generations = []
    for family, settings in GENERATIONS:
        layers = {"n_layers" if family == "llada" else "num_hidden_layers": 2}
        roles = family == "dream"
        bundle = native_bundle(folder / family, family, Scheme("mixed4", 16), role_head=roles, **layers)
        bundles["native"] = str(bundle)
        generations.append(_generation(bundle, settings))
    bundles["onnx"] = str(make_bundle(folder / "onnx", "llada", n_layers=1))
    segments = {}
    sessions = [*_mlx_sessions(folder), *_package_sessions(folder)]
    damaged = {}
    for name, recorded in _passes(sessions):
        recorded.save(folder, name)
        segments[name] = recorded.format
        bundles[recorded.format] = str(recorded.bundle)
        if recorded.format == "mlx":
            damaged[name] = _damaged(recorded.bundle)
    whole = {}
    for name, generation, recorded in _whole_generations(sessions):
        recorded.save(folder, name)
        whole[name] = generation
    _write_json(folder / "memory.json", [row for session in sessions for row in _memory(session)])
    _write_json(folder / "damaged.json", damaged)
    _write_json(folder / "segment_generations.json", whole)
    _write_json(folder / "bundles.json", bundles)
    _write_json(folder / "generations.json", generations)
    several = {"coreai": ("coreai", "27"), "coreml": ("coreml", "18"), "native": ("native", "")}
    arriving.make_set(folder / "several", several)
    _write_json(folder / "segments.json", segments)
    canvases = [_canvases(folder / family / "bundle", 60) for family in ("diffusion_gemma", "llada")]
    _write_json(folder / "canvases.json", canvases)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _canvases(bundle: Path, count: int) -> dict[str, Any]:
    """Random answers of a bundle's tokenizer, with what is drawn after each of their events."""
    (file,) = bundle.rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    mask = Bundle.open(bundle).manifest.sampler["config"].get("mask_token_id")
    drawing = canvas_text.Drawing(tokenizer, mask)
    answers = []
    for seed in range(count):
        events, drawn = canvas_text.random_events(seed, drawing), []
        for number, event in enumerate(events, 1):
            cells = drawing.cells(events[:number])
            parts = drawing.parts(cells)
            drawn.append(
                {
                    "event": event.to_dict(),
                    "tokens": [token for _, token, _ in cells],
                    "states": [canvas_text.STATES.index(state) for _, _, state in cells],
                    "part_texts": [text for text, _ in parts],
                    "part_states": [canvas_text.STATES.index(state) for _, state in parts],
                }
            )
        answers.append(drawn)
    text = canvas_text.SAMPLE
    with CoreText(file.read_bytes()) as own:
        behind, size = own.encode_behind(text), own.count()
    return {"bundle": str(bundle), "text": text, "behind": behind, "count": size, "answers": answers}


def _generation(bundle: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    with Session(bundle, SessionOptions(threads=2)) as session:
        outcome = native_generation.generate(session, PROMPT, **settings)
    assert outcome.status == OK, outcome.message
    assert outcome.stats is not None
    return {
        "bundle": str(bundle), "prompt": PROMPT, "seed": settings["seed"],
        "max_new_tokens": settings["max_new_tokens"], "steps": settings["steps"],
        "options": settings["options"], "statistics": outcome.stats, "events": list(_events(outcome.events)),
    }  # fmt: skip


def _events(events: Sequence[Any]) -> Iterator[dict[str, Any]]:
    committed = 0
    for event in events:
        plain = {"kind": event[0], "canvas": 0, "step": 0, "start": 0, "ids": [], "accepted": []}
        if event[0] == "draft":
            plain |= dict(zip(("canvas", "step", "start", "ids", "accepted"), event[1:], strict=True))
        elif event[0] == "committed":
            plain |= {"canvas": event[1], "ids": event[2], "start": committed}
            committed += len(event[2])
        yield plain


@dataclass
class Recording:
    """Passes of a session, and the calls that its engine made. Arrays lie in one file of numbers, float32 and
    int64 side by side.
    """

    bundle: Path
    format: str
    passes: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    def add(self, unit: str, function: str, inputs: Any, outputs: Any) -> None:
        """A call."""
        self.calls.append({"unit": unit, "function": function, "inputs": inputs, "outputs": outputs})

    def array(self, array: np.ndarray) -> dict[str, Any]:
        """Where a copy of the array lies. Weights, which the bundle holds, are a sum of their bytes."""
        kind = {"f": np.float32, "i": np.int64, "u": np.int64}[array.dtype.kind]
        entry = {"dtype": kind.__name__, "shape": list(array.shape), "offset": len(self.data)}
        self.data += np.ascontiguousarray(array, kind).tobytes()
        return entry

    def save(self, folder: Path, name: str) -> None:
        (folder / f"{name}.bin").write_bytes(self.data)
        record = {"bundle": str(self.bundle), "passes": self.passes, "calls": self.calls}
        _write_json(folder / f"{name}.json", record)

    def run(self, session: Session, seed: int) -> None:
        """A prefix of two chunks where the family has one, a canvas, the same with soft embeddings and noise,
        and another look at some of its rows.
        """
        rng = np.random.default_rng(seed)
        model, vocab = session.model, session.vocab_size
        prompt, canvas = rng.integers(0, vocab, 21), rng.integers(0, vocab, 13)
        if model.causal_prefix:
            for part in (prompt[:8], prompt[8:]):
                session.prefill(part)
                self.passes.append({"kind": "prefill", "ids": part.tolist()})
        noise = PhiloxNoise(seed)
        soft = model.self_conditioning
        first = session.denoise(canvas, HeadRequest(temperature=0.8, soft=soft))
        self._say("denoise", canvas, {"temperature": 0.8, "soft": soft}, first)
        draw = noise.gumbel(13, vocab)
        request = HeadRequest(temperature=0.7, gumbel=draw, gumbel_scale=0.5, soft=soft, top_k=5, logits=True)
        second = session.denoise(canvas[::-1].copy(), request, first.soft)
        asked = {"temperature": 0.7, "gumbel_scale": 0.5, "soft": soft, "top_k": 5, "logits": True}
        asked |= {"seed": draw.seed, "draw": draw.draw}
        self._say("denoise", canvas[::-1], asked, second, first.soft)
        rows = np.array([3, 0, 3, 12])
        third = session.project(HeadRequest(rows=rows, temperature=1.5))
        self._say("project", [], {"temperature": 1.5, "rows": rows.tolist()}, third)

    def _say(
        self,
        kind: str,
        ids: Any,
        request: dict[str, Any],
        output: HeadOutput,
        soft: np.ndarray | None = None,
    ) -> None:
        found = {name: self.array(value) for name, value in vars(output).items() if value is not None}
        self.passes.append({
            "kind": kind, "ids": [int(i) for i in ids], "request": request, "output": found,
            "soft": None if soft is None else self.array(soft),
        })  # fmt: skip


def _memory(session: RecordedSession) -> Iterator[dict[str, Any]]:
    """What the engine in Python states about its memory; that of packages is the core's."""
    name, _, open_session = session
    _, opened = open_session()
    with opened:
        bundle = opened.bundle
        engine: Any = opened.engine
        if engine is None:
            return
        for rows, kept, head_rows in ((16, 0, 16), (256, 2048, 64), (40, 32, 40)):
            found = engine.memory(bundle, Lengths(rows, kept, 1, head_rows))
            yield {"recording": name, "rows": rows, "kept": kept, "head_rows": head_rows} | vars(found)


def _damaged(bundle: Path) -> dict[str, Any]:
    """A copy of a bundle with a bit of a layer's weights turned over, and where."""
    copy = bundle.with_name(f"{bundle.name}-damaged")
    shutil.copytree(bundle, copy)
    opened = Bundle.open(copy)
    path = copy / opened.manifest.weights.file
    with opened.open_weights() as file:
        run = file.run("layers.1")
    with open(path, "r+b") as raw:
        place = run.offset + run.parts[0].nbytes // 2
        raw.seek(place)
        byte = raw.read(1)[0]
        raw.seek(place)
        raw.write(bytes([byte ^ 4]))
    return {"bundle": str(copy), "file": str(path), "run": run.name}


def _mlx_sessions(folder: Path) -> Iterator[RecordedSession]:
    """What opens a recorded session of an MLX bundle; none without MLX."""
    try:
        import mlx.core  # noqa: F401
    except ImportError:
        return
    shapes: dict[str, dict[str, Any]] = {
        "diffusion_gemma": {"intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2},
        "llada": {"n_layers": 2, "n_kv_heads": 2},
    }
    for family, shape in shapes.items():
        bundle = make_bundle(
            folder / f"mlx-{family}", family, Scheme("mixed4", 32), program_format="mlx", **shape
        )

        def open_session(bundle: Path = bundle) -> tuple[Recording, Session]:
            recording = Recording(bundle, "mlx")
            return recording, Session(bundle, engine=lambda opened: _RecordingMlx(opened, recording))

        yield f"mlx-{family}", family, open_session


class _RecordingMlx(MlxEngine):
    def __init__(self, bundle: Bundle, recording: Recording) -> None:
        super().__init__(bundle.folder, bundle.manifest, 1)
        self._recording = recording

    def _function(self, program: Function) -> Any:
        imported = super()._function(program)
        return replace(imported, call=_recorded(self._recording, program, imported.call))


def _recorded(recording: Recording, program: Function, call: Any) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        outputs = call(*arguments)
        inputs = []
        for wanted, array in zip(program.inputs, arguments, strict=True):
            if wanted.name.startswith("w."):
                import mlx.core as mx

                total = int(np.array(array.view(mx.uint8), np.int64).sum())
                inputs.append({"name": wanted.name, "byte_sum": total})
            else:
                inputs.append({"name": wanted.name, "array": recording.array(np.array(array))})
        given = [
            {"name": o.name, "array": recording.array(np.array(a))}
            for o, a in zip(program.outputs, outputs, strict=True)
        ]
        recording.add("", program.name, inputs, given)
        return outputs

    return run


def _passes(sessions: Sequence[RecordedSession]) -> Iterator[tuple[str, Recording]]:
    """Passes, with every call of a function that they make."""
    for name, _, open_session in sessions:
        recording, session = open_session()
        with session:
            recording.run(session, seed=len(name))
        yield name, recording


def _whole_generations(
    sessions: Sequence[RecordedSession],
) -> Iterator[tuple[str, dict[str, Any], Recording]]:
    """Whole generations in Python, with every call of a function that they make."""
    for name, family, open_session in sessions:
        recording, session = open_session()
        settings = dict(GENERATIONS)[family]
        sampling = session.bundle.manifest.sampler
        canvas = session.model.canvas_length
        with session:
            events = list(generate(session, sampling, PROMPT, canvas_length=canvas, **settings))
        plain = [
            ("draft", e.canvas_index, e.step, e.start, e.ids.tolist(), e.accepted.astype(int).tolist())
            if isinstance(e, Draft)
            else ("committed", e.canvas_index, e.ids.tolist())
            if isinstance(e, Committed)
            else ("done",)
            for e in events
        ]
        record = {"bundle": str(recording.bundle), "prompt": PROMPT, **settings, "statistics": {}}
        yield f"{name}-generation", record | {"events": list(_events(plain))}, recording


def _package_sessions(folder: Path) -> Iterator[RecordedSession]:
    """What opens a recorded session of a bundle in packages; none where edgekit does not run such bundles."""
    if importlib.util.find_spec("edgekit.runtime.bundle.packages") is None:
        return
    from support.reference_packages import ReferenceExecutor, random_packages

    cases: dict[str, tuple[str, list[tuple[int, int]], dict[str, Any]]] = {
        "packages-gemma": ("diffusion_gemma", [(16, 0), (16, 32), (16, 64)],
                           {"num_hidden_layers": 3, "moe_intermediate_size": 32}),
        "packages-llada": ("llada", [(16, 0), (64, 0)],
                           {"n_layers": 3, "layers_per_package": 1, "dtype": "float16"}),
    }  # fmt: skip
    for name, (family, lengths, options) in cases.items():
        bundle, model = random_packages(folder / name, family, lengths, **options)

        def open_session(bundle: Path = bundle, model: Any = model) -> tuple[Recording, Session]:
            recording = Recording(bundle, "coreml")
            executor = ReferenceExecutor(model, bundle)
            return recording, Session(bundle, executor=_RecordingExecutor(executor, recording))

        yield name, family, open_session


class _RecordingExecutor:
    def __init__(self, executor: Any, recording: Recording) -> None:
        self.name, self._executor, self._recording = executor.name, executor, recording

    def open(self, path: Path, functions: Sequence[str]) -> Any:
        return _RecordingModel(self._executor.open(path, functions), path.stem, self._recording)


class _RecordingModel:
    def __init__(self, model: Any, unit: str, recording: Recording) -> None:
        self._model, self._unit, self._recording = model, unit, recording

    def call(self, function: str, inputs: Arrays) -> Arrays:
        outputs: Arrays = self._model.call(function, inputs)
        record = self._recording.array
        given = [
            [{"name": name, "array": record(array)} for name, array in side.items()]
            for side in (inputs, outputs)
        ]
        self._recording.add(self._unit, function, given[0], given[1])
        return outputs

    def close(self) -> None:
        self._model.close()
