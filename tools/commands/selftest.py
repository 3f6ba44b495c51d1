"""`edgekit selftest`: golden passes and a few timed steps on this machine, in one file to send."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.flashload.files import write_atomic
from edgekit.flashload.sizes import size
from edgekit.runtime.errors import PromptTooLong
from edgekit.tools.console import Steps, note, prose
from edgekit.tools.failures import DAMAGED, Failure
from edgekit.tools.help import Command
from edgekit.tools.options import (
    Count,
    Size,
    bundle_argument,
    bundle_folder,
    chosen_from,
    debug_option,
    json_option,
    memory_option,
    quoting,
)
from edgekit.tools.request import engine_option, threads_option
from edgekit.tools.stuck import ending_if_stuck
from edgekit.tools.terminal_text import counted, visible

if TYPE_CHECKING:
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.bundle.golden import Golden, Pass
    from edgekit.runtime.generation import Generator

_VERSION = 1


@click.command(
    "selftest",
    cls=Command,
    short_help="Compare a bundle with golden passes, time it, write a report.",
    examples=("edgekit selftest tiny-gemma-host-mixed4",),
)
@bundle_argument
@memory_option
@engine_option
@threads_option
@click.option(
    "--passes", type=Count(1, 1000), default=5, show_default=True, metavar="N", help="Passes that are timed."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of the report, in place of an earlier one. Default: selftest-BUNDLE[-ENGINE].json here.",
)
@click.option(
    "--record", is_flag=True, help="Make what is found here the golden results of the bundle, a folder."
)
@click.option("--overwrite", is_flag=True, help="With --record: also where it has golden results.")
@json_option
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    bundle: str,
    memory: Size | None,
    engine: str | None,
    threads: int | None,
    passes: int,
    output: Path | None,
    record: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run BUNDLE on this machine, compare it with the golden results in it, and time it.

    Golden results are the scores of fixed passes and the tokens of a short answer, recorded with --record
    where the engine was compared with the reference. Scores are compared in decibels, the variance of the
    golden ones over the mean square of the differences: of unrelated ones there are about 0, from 10 on
    another precision explains the rest, and 60 are a thousandth of the values. The engine is that of the
    target which the bundle was exported for, on a GPU where the target has one. The report is one JSON file:
    what was compared, seconds a pass, memory, the machine and the versions; no name of a user, host or
    folder.

    The exit code is 1 where results differ by more than another precision would explain, else 0.
    """
    folder = Path(bundle_folder(bundle, engine, quiet=as_json))
    file = output or Path(report_name(bundle, folder, engine))
    if not (as_json or file.parent.is_dir()):
        raise Failure(f"{file}: there is no folder {file.parent}; make it, or name another file with -o")
    if not as_json and file.resolve().is_relative_to(folder.resolve()):
        raise Failure(f"{file}: lies in the bundle; name another file with -o")
    with ending_if_stuck(), quoting(memory):
        from edgekit.runtime.generation import Generator
        from edgekit.tools import golden

        engine = engine or _of_target(folder)
        made = Generator(
            folder, memory_bytes=None if memory is None else int(memory), threads=threads or 0, engine=engine
        )
        with made as generator, Steps("opening", quiet=as_json) as steps:
            if not as_json and (taken := chosen_from(bundle, generator.bundle)):
                steps.note(visible(taken))
            if record and generator.bundle.path != folder:
                raise Failure(
                    f"{bundle} has several bundles; record into one of them: {generator.bundle.path}"
                )
            known = golden.read(generator.bundle)
            if record and known is not None and not overwrite:
                by = known.by.get("engine", "somebody")
                raise Failure(
                    f"{bundle} has golden results already, by {visible(str(by))}; --overwrite replaces them"
                )
            steps.note(visible(f"{bundle}: golden passes, an answer, {counted(passes, 'timed pass')}"))
            found, timing = _run(generator, passes, None if record else known)
            report = _report(generator, found, known, timing)
    if record:
        golden.record(
            folder, replace(found, by={"engine": report["engine"]["name"], "machine": report["machine"]})
        )
        note(f"golden results recorded in {folder / golden.GOLDEN_FILE}")
    compared = report["golden"]
    if as_json:
        click.echo(json.dumps(report))
    else:
        write_atomic(file, (json.dumps(report, indent=1) + "\n").encode())
        _show(report)
        click.echo(visible(f"report: {file}"))
    if compared is not None and compared["verdict"] == "different" and not record:
        ctx.exit(DAMAGED)


def report_name(bundle: str, folder: Path, engine: str | None) -> str:
    """The report's file where nobody names one. What a bundle of a set is called is its format as a rule,
    which tells no model from another, so that the name of the set stands before it.
    """
    from edgekit.flashload import bundle_set

    own = folder.resolve()
    parts = [*([own.parent.name] if bundle_set.is_set(own.parent) else []), Path(bundle).name or own.name]
    if engine is not None and engine != parts[-1]:
        parts.append(engine)
    return f"selftest-{'-'.join(filter(None, parts))}.json"


def _of_target(folder: Path) -> str | None:
    """The engine that a bundle's target names, None where that is the format's own. One that runs the
    bundle's machine code is for who asks for it.
    """
    from edgekit.runtime import engines
    from edgekit.runtime.bundle import Bundle, choice
    from edgekit.runtime.engine_registry import ENGINES
    from edgekit.runtime.errors import EngineUnavailable
    from edgekit.targets import TARGETS

    manifest = Bundle.open(choice.choose(folder)).manifest
    target = TARGETS.find(str(manifest.provenance.get("target")))
    name = None if target is None else target.engines.get(manifest.format)
    row = None if name is None else ENGINES.find(name)
    if name is None or row is None or row.by_name:
        return None
    try:
        engines.check_available(name)
    except EngineUnavailable as error:
        raise Failure(f"{error}; --engine {manifest.format} tests the processor instead") from error
    return name


def _run(generator: Generator, count: int, known: Golden | None) -> tuple[Golden, dict[str, Any]]:
    """Results, of the passes of `known` where there are any, and seconds of what was timed."""
    import numpy as np

    from edgekit.runtime.bundle.golden import Golden
    from edgekit.runtime.sampling import HeadRequest
    from edgekit.tools import golden

    bundle = generator.bundle
    started = time.perf_counter()
    prompt = golden.prompt(generator) if known is None else known.prompt
    wanted = golden.inputs(bundle, prompt) if known is None else known.passes
    with _golden_passes(bundle, wanted):
        tokens = golden.tokens(generator.generate(prompt, golden.settings(bundle)))
        answered = time.perf_counter() - started
        session = generator.session
        found = Golden(golden.passes(wanted, session), prompt, tokens)
    canvas = np.array(wanted[0].canvas)
    before, seconds = session.counters(), list[float]()
    for _ in range(count):
        started = time.perf_counter()
        session.denoise(canvas, HeadRequest())
        seconds.append(time.perf_counter() - started)
    read = session.counters()["bytes_read"] - before["bytes_read"]
    return found, {
        "positions": len(canvas),
        "pass_seconds": seconds,
        "median_pass_seconds": statistics.median(seconds),
        "bytes_read_per_pass": read // count,
        "opening_and_answer_seconds": answered,
    }


@contextmanager
def _golden_passes(bundle: Bundle, wanted: list[Pass]) -> Iterator[None]:
    """Inside the block, passes that are longer than programs are said to be the golden ones, which nobody can
    shorten.
    """
    try:
        yield
    except PromptTooLong as error:
        if bundle.packages is None:
            raise
        longest = max(len(each.prefix) + len(each.canvas) for each in wanted)
        raise PromptTooLong(
            f"{bundle.path}: the golden passes take up to {longest} positions, {bundle.packages.most()}: "
            "export with longer --lengths"
        ) from error


def _report(
    generator: Generator, found: Golden, known: Golden | None, timing: dict[str, Any]
) -> dict[str, Any]:
    from edgekit.tools import golden
    from edgekit.tools.machine import libraries, machine

    session, manifest = generator.session, generator.bundle.manifest
    counters = session.statistics()
    compared = None
    if known is not None:
        made = golden.compare(found, known)
        compared = {
            "verdict": made.verdict,
            "same_argmax": made.same_argmax,
            "equal_scores": made.decibels == math.inf,
            "decibels": made.decibels if math.isfinite(made.decibels) else None,
            "same_tokens": made.same_tokens,
            "close_from_decibels": golden.CLOSE,
            "by": known.by,
        }
    return {
        "version": _VERSION,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "bundle": {
            "model": generator.bundle.model.family,
            "checkpoint": manifest.provenance.get("checkpoint"),
            "target": manifest.provenance.get("target"),
            "format": manifest.format,
            "device": manifest.programs.get("device"),
            "preset": manifest.quantization["preset"],
            "weights_sha256": manifest.weights.sha256,
            "weights_bytes": manifest.weights.size,
        },
        "machine": machine(),
        "engine": {
            "name": counters["engine"],
            "threads": session.threads,
            **{name: counters[name] for name in ("provider", "device", "on_processor") if name in counters},
            "libraries": libraries(),
        },
        "golden": compared,
        "timing": timing,
        "memory": {
            "budget_bytes": counters["memory_bytes"],
            "peak_bytes": counters["peak_bytes"],
            "pinned_bytes": counters["pinned_bytes"],
        },
    }


def _show(report: dict[str, Any]) -> None:
    compared, timing, memory = report["golden"], report["timing"], report["memory"]
    if compared is None:
        said = "none in this bundle; --record makes them where the engine is trusted"
    else:
        decibels = compared["decibels"]
        near = (
            "equal" if compared["equal_scores"] else "unrelated" if decibels is None else f"{decibels:.1f} dB"
        )
        share = f"{100 * compared['same_argmax']:.1f}% of the most probable tokens"
        answer = "the same" if compared["same_tokens"] else "another"
        # The verdict is on tokens; scores of them may be as far apart as another precision brings them.
        verdict = "same tokens" if compared["verdict"] == "equal" and near != "equal" else compared["verdict"]
        said = f"{verdict}: scores {near}, {share}, {answer} answer"
    rows = [
        ["golden results", said],
        ["engine", _engine(report["engine"])],
        ["a pass", f"{timing['median_pass_seconds']:.4g} s for {timing['positions']} positions"],
        ["read in a pass", size(timing["bytes_read_per_pass"])],
        ["peak memory", size(memory["peak_bytes"])],
        ["machine", f"{report['machine']['processor']}, {report['machine']['system']}"],
    ]
    for name, value in rows:
        prose(f"{name:16}{value}")


def _engine(engine: dict[str, Any]) -> str:
    """Its name, with what it computes on and with how many threads, where it says so."""
    threads = counted(engine["threads"], "thread") if engine["threads"] else ""
    words = (engine["name"], engine.get("provider", ""), engine.get("device", ""), threads)
    return ", ".join(str(word) for word in words if word)
