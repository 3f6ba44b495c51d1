"""Measures one case in a process of its own: its memory is that of nothing else."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit.tools.apart import Tell, ending, serve
from edgekit.tools.benchmark.wanted import Wanted
from edgekit.tools.console import remarks

if TYPE_CHECKING:
    from edgekit.runtime.generation import Generator


def main() -> None:
    serve(_reported)


def _reported(given: Any, tell: Tell) -> dict[str, Any]:
    with remarks(lambda line: tell(note=line)):
        return _measured(Wanted.of(given), tell)


def _measured(wanted: Wanted, tell: Tell) -> dict[str, Any]:
    from edgekit.runtime.generation import Generator

    case = wanted.case

    def opened() -> Generator:
        return Generator(
            case.bundle,
            memory_bytes=case.memory,
            resident_bytes=case.resident,
            threads=case.threads,
            engine=case.engine,
        )

    if wanted.start:
        from edgekit.tools.benchmark.starts import started

        return started(wanted, opened, tell)
    with opened() as generator:
        if wanted.questions:
            from edgekit.tools.benchmark.asking import answered, check

            if wanted.only_check:
                check(wanted, generator)
                return {}
            return answered(wanted, generator, tell)
        return _repeated(wanted, generator, tell)


def _repeated(wanted: Wanted, generator: Generator, tell: Tell) -> dict[str, Any]:
    from edgekit.tools.benchmark.recording import recording
    from edgekit.tools.benchmark.workload import Interrupted, Workload

    workload = Workload(wanted.case, generator)
    if wanted.spans is None:
        wanted = replace(wanted, spans=workload.spans)
    tell(stage="opening", total=0)
    with (
        workload.opened() as opened,
        recording(wanted, opened.session, workload.new_tokens) as bench,
    ):
        if wanted.warmups:
            tell(stage="warming up", total=wanted.warmups)
        with suppress(Interrupted):
            for _ in range(wanted.warmups):
                opened.run(ending=ending)
                tell(done=1)
            tell(stage="measuring", total=wanted.runs)
            for run in range(wanted.runs):
                with bench.test({"run": run}, workload.prompt_tokens):
                    opened.run(bench, ending)
                tell(done=1)
        return bench.report()


if __name__ == "__main__":
    main()
