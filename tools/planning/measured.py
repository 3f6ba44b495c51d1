"""Machines that `edgekit bench` has measured: planned from their limits, beside what was measured there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekit.targets.devices import Figure
from edgekit.tools.benchmark.comparison import is_endpoint
from edgekit.tools.benchmark.rows import row, told
from edgekit.tools.planning.model import PlannedModel
from edgekit.tools.planning.plan import Plan, make
from edgekit.tools.planning.predict import Request
from edgekit.tools.planning.rates import GB, NotKnown, machine_name, of_limits, with_share

#: No machine has so much memory.
_MOST_BYTES = 1 << 48


def plan_of(
    report: Mapping[str, Any], model: PlannedModel, preset: str, request: Request, where: Path
) -> Plan:
    """The machine of a report in file `where`, with the report's budget and lengths and its measured step
    where it is of a model of this shape and preset, else with the memory that an application may use there
    and the lengths of `request`.

    Raises NotKnown, and EdgekitError for lengths that the model does not have.
    """
    if is_endpoint(report):
        raise NotKnown(f"{where}: is of an endpoint, of whose machine nothing is known; leave it out")
    machine, about, session = report["machine"], told(report), report["session"]
    name = machine_name(machine, session["threads"])
    limits = about.get("limits")
    if not limits:
        raise NotKnown(f"{where}: has no limits of {name}; run bench without --no-probe")
    source = f"`edgekit bench`, {str(about['date'])[:10]}"
    ours = _of_one_shape(about["model"], model, preset)
    if about["model"]["name"] != model.name:
        name += f", measured with {about['model']['name']}"
    if not ours or session["resident_bytes"] is not None:
        granted = int(machine["memory_bytes"])
        rates = of_limits(name, limits, None, source)
        return make(name, model, with_share(rates, granted) if granted else rates, request)
    budget, case = session["memory_bytes"], about["case"]
    name += "".join(f", {option}={json.dumps(value)}" for option, value in case["settings"].items())
    rates = of_limits(name, limits, budget, source)
    if budget is not None:
        rates = rates.with_figure("app_budget_gb", Figure(budget / GB, "given", "--memory of the report"))
        rates = replace(rates, process=_process(report))
    count = int(case["sequences"])
    prompt = max(1, report["tests"][0]["prompt_tokens"] // max(1, count))
    asked = Request(prompt, case["new_tokens"] or None, count)
    seconds = row(report).get("forward_ms")
    planned = make(name, model, rates, asked)
    return replace(planned, measured_seconds=None if seconds is None else seconds / 1000)


def _process(report: Mapping[str, Any]) -> int | None:
    """Bytes that the process held before its session; None where a report does not tell."""
    found = report["plan"].get("process")
    return found if isinstance(found, int) and 0 <= found < _MOST_BYTES else None


def _of_one_shape(about: Mapping[str, Any], model: PlannedModel, preset: str) -> bool:
    """Whether a report's model has the family and size of this one: bundles of random weights, too."""
    wanted = {"family": model.bundle.model.family, "parameters": model.parameters, "preset": preset}
    return all(about.get(name) == value for name, value in wanted.items())
