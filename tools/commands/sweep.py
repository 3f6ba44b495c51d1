"""`edgekit sweep`: every combination of exports and measurements, each done once, in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekit.tools.commands.bench import table_option
from edgekit.tools.console import Steps, for_programs, note, prose, table
from edgekit.tools.failures import DAMAGED, Failure, Interrupted
from edgekit.tools.help import Command
from edgekit.tools.options import Folder, debug_option, html_option
from edgekit.tools.output_file import check_page
from edgekit.tools.terminal_text import counted, visible

if TYPE_CHECKING:
    from edgekit.tools.sweep.store import Store
    from edgekit.tools.sweep.units import Job
    from edgekit.tools.sweep.work import Work


@click.command(
    "sweep",
    cls=Command,
    short_help="Export, verify and measure every combination.",
    examples=(
        """printf '%s\\n' 'model = "tiny-gemma"' 'memory = ["100MB", "all"]' > tiny.toml""",
        "edgekit sweep tiny.toml --dry-run",
        "edgekit sweep tiny.toml",
        "edgekit bench --merge tiny/reports.jsonl -o csv",
    ),
)
@click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=Folder(),
    metavar="DIR",
    help="Folder of bundles and reports. Default: FILE here.",
)
@click.option("--dry-run", is_flag=True, help="Show what there is and what would be done.")
@table_option("--table", "form")
@html_option
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Work on the nodes of a Ray cluster: HOST:PORT of its head, or auto for the one of this machine.",
)
@debug_option
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    output: Path | None,
    dry_run: bool,
    form: str,
    html: Path | None,
    ray: str | None,
) -> None:
    """Export every combination of FILE.toml, verify each bundle and measure it in every way.

    A key is an option of `export` or `bench`, with a value or a list of them: model, quant, memory, prompts
    and others; a table [procedure.NAME] has settings of the sampler. The same command goes on after any
    interruption, and does what is new in FILE.toml. The exit code is 1 where something failed.
    """
    from edgekit.tools.sweep.grid import WrongValue, read_grid
    from edgekit.tools.sweep.store import Store
    from edgekit.tools.sweep.units import jobs_of

    check_page(html)
    if html is not None:
        import edgekit.tools.html.bench_page  # noqa: F401 - what it lacks is told before anything is done
    folder = output or Path(file.stem)
    if folder.exists() and folder.resolve() == file.resolve():
        raise Failure(f"{file}: its name is that of the folder as well; give another folder with -o")
    try:
        jobs = jobs_of(read_grid(file))
    except WrongValue as error:
        raise Failure(f"{file}: {error}") from error
    if html is not None and all("--prompts" in unit.words for job in jobs for unit in job.benches):
        raise Failure("--html draws runs, and the file has prompts in their place; leave it out")
    store = Store(folder)
    if dry_run:
        _show_plan(jobs, store)
        return
    try:
        with store.claimed(), Steps("sweeping") as steps, _working(ray) as work:
            for unit, _ in work(jobs, store, steps):
                if unit.kind == "bench":
                    store.write_reports(jobs)
            store.write_reports(jobs)
    except KeyboardInterrupt:
        raise Interrupted(f"the same command goes on with what is left in {folder}") from None
    if _show(jobs, store, form, html):
        ctx.exit(DAMAGED)


@contextmanager
def _working(ray: str | None) -> Iterator[Work]:
    """What does the work: this machine, or the nodes of a cluster."""
    if ray is None:
        from edgekit.tools.sweep.work import work_here

        yield work_here
        return
    from edgekit.tools.cluster.connection import connected
    from edgekit.tools.sweep.on_ray import work_on

    with connected(ray) as cluster:
        yield partial(work_on, cluster)


def _show_plan(jobs: Sequence[Job], store: Store) -> None:
    """A line for each bundle, and how much is left of all."""
    from edgekit.tools.sweep.store import left
    from edgekit.tools.sweep.work import state_in_words

    table(
        ("bundle", "export", "verification", "measurements there"),
        [(job.export.bundle, *state_in_words(job, store)) for job in jobs],
        left=4,
    )
    pending = sum(len(left(job, store)) for job in jobs)
    every = sum(len(job.units) for job in jobs)
    click.echo(visible(f"{pending} of {counted(every, 'step')} left, in {store.folder}"))


def _show(jobs: Sequence[Job], store: Store, form: str, html: Path | None) -> list[str]:
    """Print the table and write the page; what failed, in lines, is told too."""
    from edgekit.tools.benchmark.limits import lines
    from edgekit.tools.benchmark.tables import FORMATS as WRITERS
    from edgekit.tools.sweep import table as tabulating

    found = tabulating.rows(jobs, store)
    failed = tabulating.failed_lines(found)
    reports: list[dict[str, Any]] = store.reports(jobs)
    if html is not None and reports:
        from edgekit.tools.html.bench_page import write_page

        write_page(html, reports, failed)
    if form != "md":
        for_programs(WRITERS[form](found))
    else:
        for line in lines(reports):
            click.echo(visible(line) + "\n")
        click.echo(tabulating.as_markdown(found))
    for line in tabulating.long_reasons(found):
        prose(line, err=True)
    if failed:
        prose(f"{counted(len(failed), 'step')} failed; the same command tries again", err=True)
    note(f"bundles and reports: {store.folder}")
    return failed
