"""What a report says of the bundle and the case beside the core's own facts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.bundle.costs import of_bundle
from edgekit.tools.machine import libraries
from edgekit.tools.versions import installed_version

if TYPE_CHECKING:
    from edgekit.tools.benchmark.workload import Opened, Workload


def about(workload: Workload, opened: Opened, limits: dict[str, Any] | None) -> dict[str, Any]:
    """The member "about" of a report, `limits` being those of the machine; no name of a user, host or
    folder.
    """
    bundle, statistics = opened.session.bundle, opened.session.statistics()
    manifest, case = bundle.manifest, workload.case
    try:
        costs = of_bundle(bundle).as_dict()
    except EdgekitError:
        costs = None  # bundles of other writers need no report of their matrices
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "edgekit": installed_version(),
        "libraries": libraries(),
        "model": {
            "name": manifest.provenance.get("checkpoint"),
            "family": bundle.model.family,
            "parameters": manifest.quantization["parameters"],
            "preset": manifest.quantization["preset"],
            "group_size": manifest.quantization.get("group_size"),
            "target": manifest.provenance.get("target"),
        },
        "limits": limits,
        "costs": costs,
        "engine": {
            name: statistics[name]
            for name in ("engine", "provider", "device", "on_processor")
            if name in statistics
        },
        "case": {
            "sequences": case.sequences,
            "prompt": "text" if case.tokens is None else "random",
            "new_tokens": workload.new_tokens,
            "forwards": case.forwards,
            "settings": dict(case.settings),
        },
    }
