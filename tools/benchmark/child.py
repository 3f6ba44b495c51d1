"""Measures one case in a process of its own: its memory is that of nothing else.

The case is one line of JSON on stdin. Lines of JSON on stdout: {"stage": ..., "total": n} and {"done": 1}
while it runs, then {"report": ...}, or {"error": ..., "needed_bytes": n}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from edgekit.flashload.errors import BudgetExceeded, EdgekitError
from edgekit.tools.benchmark.cases import Case


def main() -> None:
    wanted = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What a library prints is none of these lines.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**line: Any) -> None:
        print(json.dumps(line), file=out, flush=True)

    try:
        case, limits = Case.of(wanted["case"]), wanted["limits"]
        tell(report=_measured(case, limits, wanted["runs"], wanted["warmups"], wanted["spans"], tell))
    except BudgetExceeded as error:
        tell(error=str(error), needed_bytes=error.needed_bytes)
    except EdgekitError as error:
        tell(error=str(error), needed_bytes=None)


def _end_with_parent() -> None:
    """Nobody waits for a result any more when the other end of stdin is closed."""
    sys.stdin.read()
    os._exit(1)


def _measured(
    case: Case, limits: dict[str, Any] | None, runs: int, warmups: int, spans: int, tell: Any
) -> dict[str, Any]:
    from edgekit.runtime.bench import Bench
    from edgekit.runtime.generation import Generator
    from edgekit.tools.benchmark.about import about
    from edgekit.tools.benchmark.workload import Workload

    with Generator(
        case.bundle,
        memory_bytes=case.memory,
        resident_bytes=case.resident,
        threads=case.threads,
        engine=case.engine,
    ) as generator:
        workload = Workload(case, generator)
        tell(stage="opening", total=0)
        with (
            workload.opened() as opened,
            Bench(opened.session, about(workload, opened, limits), spans) as bench,
        ):
            if warmups:
                tell(stage="warming up", total=warmups)
            for _ in range(warmups):
                opened.run()
                tell(done=1)
            tell(stage="measuring", total=runs)
            for run in range(runs):
                with bench.test({"run": run}, workload.prompt_tokens):
                    opened.run(bench)
                tell(done=1)
            return bench.report()


if __name__ == "__main__":
    main()
