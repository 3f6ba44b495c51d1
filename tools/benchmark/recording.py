"""The core's recorder, with the meter that the system's own program is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.runtime.bench import Bench
from edgekit.runtime.session import Session
from edgekit.tools.benchmark.about import about
from edgekit.tools.benchmark.powermetrics import own_meter
from edgekit.tools.benchmark.wanted import Wanted


@contextmanager
def recording(wanted: Wanted, session: Session, new_tokens: int) -> Iterator[Bench]:
    """A recorder of a session that writes answers of at most `new_tokens`."""
    facts = about(wanted.case, new_tokens, session, wanted.limits)
    with own_meter() as (joules, unknown):
        if unknown:
            facts["energy_unknown"] = unknown
        with Bench(session, facts, wanted.spans or 0, joules) as bench:
            yield bench
