"""Targets: what of them can be exported for here, and what of them runs here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from edgekit.export.errors import ExportError
from edgekit.export.formats import FORMATS
from edgekit.targets import TARGETS, Target
from edgekit.tools.doctor.finding import Finding

_INSTALL = re.compile(r"pip install '[^']+'")


def examine(engines: Mapping[str, Finding]) -> Iterator[Finding]:
    """`engines` by name."""
    for target in TARGETS.working():
        yield _described(target, engines)


def _described(target: Target, engines: Mapping[str, Finding]) -> Finding:
    exported, lacking, runs, mend = [], [], [], ""
    for name in target.formats:
        row = FORMATS.find(name)
        if row is None:
            continue
        try:
            row.check_installed()
        except ExportError as error:
            lacking.append(str(error))
            found = _INSTALL.search(str(error))
            mend = mend or (found.group() if found else "")
        else:
            exported.append(name)
        engine = engines.get(target.engines.get(name, name))
        if engine is not None and engine.state == "works":
            runs.append(name)
    facts = {"target": target.name, "exports": exported, "runs": runs}
    if not exported:
        return Finding(f"target {target.name}", "lacks", "; ".join(lacking), mend, facts)
    said = f"exports {', '.join(exported)}"
    if runs:
        said += f"; of these {', '.join(runs)} can be run here"
    if lacking:
        said += f"; {'; '.join(lacking)}"
    first = target.formats[0] in exported
    return Finding(f"target {target.name}", "works" if first else "note", said, mend, facts)
