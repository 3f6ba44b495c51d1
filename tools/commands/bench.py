"""`edgekit bench`: how fast and how good bundles are here, over all combinations of several values."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.process import MOST_THREADS
from edgekit.tools.benchmark.cases import MOST_SPANS, MOST_TOKENS
from edgekit.tools.benchmark.options import Asking, check_together, prompts_options
from edgekit.tools.console import Steps, for_programs, prose
from edgekit.tools.failures import DAMAGED, Interrupted
from edgekit.tools.help import Command, Rare
from edgekit.tools.options import (
    Assignment,
    BundleName,
    Bytes,
    Count,
    Several,
    bundle_folder,
    debug_option,
    html_option,
)
from edgekit.tools.output_file import ReportFile, check_page, same_file
from edgekit.tools.terminal_text import counted

if TYPE_CHECKING:
    from edgekit.tools.benchmark.cases import Case
    from edgekit.tools.benchmark.wanted import Wanted

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = "md", "json", "jsonl", "csv"


def table_option(*names: str) -> Callable[[F], F]:
    """The form of the table on stdout, as an option of these names."""
    return click.option(
        *names,
        type=click.Choice(FORMATS),
        default="md",
        show_default=True,
        metavar="FORMAT",
        help="On stdout: md, json, jsonl or csv.",
    )


@click.command(
    "bench",
    cls=Command,
    short_help="Measure tokens a second, passes, reads and memory.",
    examples=(
        "edgekit bench tiny-gemma-host-mixed4",
        "edgekit bench tiny-gemma-host-mixed4 --memory 160MB,all --sequences 1,4 -r 2",
        "edgekit bench tiny-gemma-host-mixed4 --set steps=4,8 --report tiny.jsonl",
        """printf '{"prompt": "What is 23 + 45?", "answer": "68"}\\n' > mine.jsonl""",
        "edgekit bench tiny-gemma-host-mixed4 --prompts mine.jsonl",
        "edgekit bench --merge tiny.jsonl --html tiny.html",
    ),
)
@click.argument("bundles", nargs=-1, metavar="[BUNDLE]...", type=BundleName())
@prompts_options
@click.option(
    "-r", "--runs", type=Count(1, 10000), default=5, show_default=True, metavar="N", help="Runs of each."
)
@click.option(
    "--memory",
    type=Several(Bytes(least=1), none="all"),
    default="all",
    metavar="SIZE,...",
    help="Memory budgets; all: every weight stays in memory.",
)
@click.option(
    "--sequences", type=Several(Count(1, 1024)), default="1", metavar="N,...", help="Answers at a time."
)
@click.option(
    "-n",
    "--new-tokens",
    type=Several(Count(1), none="default"),
    default="default",
    metavar="N,...",
    help="Length of an answer. Default: the model's own.",
)
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="What to ask. Can be repeated.")
@click.option(
    "--forwards",
    type=Count(1),
    metavar="N",
    help="End a run after so many passes: for large models.",
)
@click.option(
    "--set",
    "assigned",
    type=Assignment(),
    multiple=True,
    help="A setting by name, of several values too: steps=4,8.",
)
@click.option(
    "--threads",
    type=Several(Count(1, MOST_THREADS), none="all"),
    default="all",
    metavar="N,...",
    help="Processor threads. Default: every usable core.",
)
@click.option(
    "--engine",
    "engines",
    cls=Rare,
    type=Several(click.STRING, none="default"),
    default="default",
    metavar="NAME,...",
    help="Engines, of those that run the bundle's format.",
)
@click.option(
    "-p",
    "--prompt-tokens",
    cls=Rare,
    type=Several(Count(1, MOST_TOKENS), none="text"),
    default="text",
    metavar="N,...",
    help="Prompts of so many random tokens. Default: questions in plain words.",
)
@click.option(
    "--resident",
    cls=Rare,
    type=Several(Bytes(), none="all"),
    default="all",
    metavar="SIZE,...",
    help="At most so many bytes of weights stay in memory; 0 streams all.",
)
@click.option(
    "--warmups",
    cls=Rare,
    type=Count(0, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Runs before those that count.",
)
@click.option(
    "--cold",
    cls=Rare,
    is_flag=True,
    help="Also time -r starts with the bundle's files dropped from the page cache, and -r with them there.",
)
@click.option(
    "--spans",
    cls=Rare,
    type=Count(0, MOST_SPANS),
    metavar="N",
    help="Reads, waits and uses of weights that the report has of each run. Default: none; for --html those "
    "of two denoising passes.",
)
@click.option(
    "--probe/--no-probe",
    cls=Rare,
    default=True,
    show_default=True,
    help="Measure first what the disk and the processor can do at most.",
)
@table_option("-o", "--output")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="All that was measured, for --merge; an earlier report there is replaced.",
)
@click.option(
    "--merge",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Only tabulate reports, of other devices too. Can be repeated: a --merge for each.",
)
@html_option
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    bundles: tuple[str, ...],
    runs: int,
    memory: Sequence[int | None],
    sequences: Sequence[int],
    new_tokens: Sequence[int | None],
    prompt_tokens: Sequence[int | None],
    prompts: tuple[str, ...],
    forwards: int | None,
    assigned: tuple[tuple[str, Any], ...],
    threads: Sequence[int | None],
    engines: Sequence[str | None],
    resident: Sequence[int | None],
    warmups: int,
    cold: bool,
    spans: int | None,
    probe: bool,
    output: str,
    report: Path | None,
    merge: tuple[Path, ...],
    html: Path | None,
    asking: Callable[[int | None], Asking] | None,
) -> None:
    """Measure BUNDLEs here: every combination of the values given, each in a process of its own.

    Figures are means of -r runs, after one that does not count, and standard deviations. Nothing else should
    run meanwhile. The exit code is 1 where a configuration could not be measured.
    """
    from edgekit.tools.benchmark.files import are_reports, read_reports

    if bool(bundles) == bool(merge):
        both = "; not both" if merge else ""
        raise click.UsageError(
            f"name bundles to measure, or with --merge reports to tabulate, a --merge for each{both}"
        )
    if merge and report is not None:
        raise click.UsageError("--report is of bundles that are measured; --merge writes none")
    check_page(html)
    if report is not None and html is not None and same_file(report, html):
        raise click.UsageError(f"--report and --html both name {html}; name two files")
    if html is not None:
        import edgekit.tools.html.bench_page  # noqa: F401 - what it lacks is told before anything is done
    if merge:
        read = read_reports(merge)
        _keep(read, [], None, html)
        _show(read, output)
        return
    check_together(ctx)
    kept_in = None if report is None else ReportFile(report, "file of reports", are_reports)
    from edgekit.tools.benchmark.cases import Sweep
    from edgekit.tools.benchmark.wanted import Wanted

    asked = None if asking is None else asking(new_tokens[0] if len(new_tokens) == 1 else None)
    if asked is not None and asked.baseline is not None:
        if asked.baseline in bundles:
            raise click.UsageError(f"--against {asked.baseline} is the bundle that is measured; name another")
        bundles = (asked.baseline, *bundles)
    sweep = Sweep(
        bundles,
        [None if bytes_ is None else int(bytes_) for bytes_ in memory],
        [None if bytes_ is None else int(bytes_) for bytes_ in resident],
        engines,
        [count or 0 for count in threads],
        sequences,
        prompt_tokens,
        new_tokens,
        _settings(assigned),
    )
    folders = {(b, e): bundle_folder(b, e) for b in dict.fromkeys(bundles) for e in engines}
    cases = [
        replace(case, bundle=folders[case.bundle, case.engine])
        for case in sweep.cases(forwards or 0, prompts)
    ]
    questions = () if asked is None else asked.questions
    kept = 0 if spans is None and html is None else spans
    wanted = Wanted(cases[0], runs, warmups, kept, questions=questions)
    measured, failed, ended = _measured(cases, wanted, cold, probe, kept_in, html, asked)
    if measured:
        _show(measured, output, cases)
    for line in failed:
        prose(line, err=True)
    if ended is not None:
        raise Interrupted(ended.words) if measured else KeyboardInterrupt
    if failed:
        ctx.exit(DAMAGED)


@dataclass(frozen=True)
class Ended:
    """Measuring that was interrupted, with what the last configuration has until then, if anything."""

    last: dict[str, Any] | None

    @property
    def words(self) -> str:
        if self.last is None:
            return "the configurations before it are kept"
        count = len(self.last["tests"])
        kind = "prompt" if "workload" in self.last["about"] else "run"
        return f"{counted(count, kind)} of the last configuration {'is' if count == 1 else 'are'} kept"


def _settings(assigned: Sequence[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Values by name: text with commas is several of them."""
    from edgekit.runtime.sampling.options import check_known

    found: dict[str, list[Any]] = {}
    for name, value in assigned:
        check_known(name)
        if name in found:
            raise click.UsageError(f"{name} is given twice, by two --set; separate its values by commas")
        several = [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
        if len(several) > 1 and ("" in several or len(set(several)) < len(several)):
            raise click.UsageError(f"--set {name}={value}: an empty value, or one that is there twice")
        found[name] = (
            [Assignment().convert(f"{name}={one}", None, None)[1] for one in several]
            if len(several) > 1
            else [value]
        )
    return found


def _measured(
    cases: Sequence[Case],
    wanted: Wanted,
    cold: bool,
    probe: bool,
    file: ReportFile | None,
    html: Path | None,
    asking: Asking | None,
) -> tuple[list[dict[str, Any]], list[str], Ended | None]:
    """Reports of the cases that could be measured, as is `wanted` of each, a line for each other, and where
    somebody has interrupted it, what is there of the last one. What is there is in the files by then.
    """
    from edgekit.tools.apart import EndedEarly
    from edgekit.tools.benchmark.limits import limits
    from edgekit.tools.benchmark.measure import check, measure
    from edgekit.tools.benchmark.starts import starts

    reports, failed = list[dict[str, Any]](), list[str]()

    def keep(report: dict[str, Any]) -> None:
        if asking is not None and (said := asking.complete(report, steps)):
            failed.append(said)
        reports.append(report)
        _keep(reports, failed, file, html)

    with Steps("measuring") as steps:
        # A comparison takes all its columns: none is asked before the others are known to be able to answer.
        if asking is not None and (len(cases) > 1 or asking.endpoint is not None):
            steps.stage("checking", len(cases))
            for case in cases:
                check(replace(wanted, case=case), steps)
                steps.advance(1, case.title)
        if asking is not None and asking.endpoint is not None:
            keep(asking.ask_endpoint(wanted.warmups, steps))
        steps.stage("what the machine can do", 0)
        found = limits([case.bundle for case in cases]) if probe else {}
        for number, case in enumerate(cases, 1):
            if len(cases) > 1:
                steps.note(f"{number} of {len(cases)}: {case.title}")
            try:
                own = replace(wanted, case=case, limits=found.get(case.bundle))
                begun = starts(own, partial(measure, steps=steps)) if cold else None
                report = measure(own, steps)
                if "energy_unknown" in report["about"]:
                    steps.note(f"energy is not known: {report['about']['energy_unknown']}")
                if begun is not None:
                    report["about"]["starts"] = begun
                    if begun["cold_unknown"]:
                        steps.note(f"cold starts are not known: {begun['cold_unknown']}")
                keep(report)
            except EndedEarly as error:
                last = error.report if error.report["tests"] else None
                if last is not None:
                    keep(last)
                return reports, failed, Ended(last)
            except EdgekitError as error:
                if len(cases) == 1 and not reports:
                    raise
                failed.append(f"{case.title}: {error}")
    return reports, failed, None


def _keep(
    reports: Sequence[dict[str, Any]], failed: Sequence[str], file: ReportFile | None, html: Path | None
) -> None:
    """Write what was measured so far, and the page of it. Raises Failure for reports without runs."""
    if file is not None:
        from edgekit.tools.benchmark.files import write_reports

        file.write(lambda path: write_reports(path, reports))
    if html is not None:
        from edgekit.tools.html.bench_page import write_page

        write_page(html, reports, failed)


def _show(reports: Sequence[dict[str, Any]], output: str, cases: Sequence[Case] = ()) -> None:
    """Tables of runs, and of prompts of a user's own, as Markdown; for programs a row for each report. The
    bundles of `cases` are named by their folders, others by their digests.
    """
    from edgekit.tools.benchmark import comparison
    from edgekit.tools.benchmark.limits import lines
    from edgekit.tools.benchmark.rows import row
    from edgekit.tools.benchmark.tables import FORMATS as WRITERS

    own = [report for report in reports if comparison.has_prompts(report)]
    runs = [row(report) for report in reports if not comparison.has_prompts(report)]
    asked = comparison.compared(own)
    names = _folders(cases)
    for each in (*runs, *asked):
        each["bundle"] = names.get(each["bundle"], each["bundle"])
    if output != "md":
        for_programs(WRITERS[output]([*runs, *asked]))
        return
    for line in lines(reports):
        prose(line)
        click.echo()
    tables = [WRITERS["md"](runs)] if runs else []
    click.echo("\n\n".join([*tables, *comparison.tables(asked)]))


def _folders(cases: Sequence[Case]) -> dict[str, str]:
    """Names of folders by what reports call their bundles; a name of two of them is left out."""
    from edgekit.flashload.manifest import manifest_path
    from edgekit.tools.benchmark.rows import DIGITS

    paths = {Path(case.bundle).resolve(): Path(case.bundle).name for case in cases}
    names, found = list(paths.values()), dict[str, str]()
    for path, name in paths.items():
        with suppress(OSError, ValueError, LookupError):  # it may have changed since
            digest = json.loads(manifest_path(path).read_bytes())["sha256"]
            if names.count(name) == 1:
                found[digest[:DIGITS]] = name
    return found
