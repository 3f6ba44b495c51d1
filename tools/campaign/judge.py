"""The outcomes that a damaged bundle may have, and those that it must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgekit.tools.campaign.commands import answer
from edgekit.tools.campaign.trial import Trial

#: Seconds of processors.
MOST_SECONDS = 5.0
MORE_BYTES = 300_000_000
#: An error is one line of at most so many characters: a file name and a sentence.
LONGEST_LINE = 1000
DAMAGED, REFUSED = 1, 2


@dataclass(frozen=True)
class Fault:
    """Something that must not happen: in which command, what, and the end of what it printed."""

    command: str
    what: str
    shown: str


def faults(
    trials: Mapping[str, Trial], intact: Mapping[str, Trial], *, sealed: bool, harmless: bool
) -> list[Fault]:
    """Everything wrong with the `trials` of one edit, by command, beside those of the intact bundle.

    As found (not `sealed`) a bundle is refused or gives the intact tokens, and `verify` finds the edit,
    unless it is `harmless`: of a file that the manifest does not list. Sealed anew, other tokens are allowed.
    """
    found = []
    for name, run in trials.items():
        what = _crash(run, intact[name])
        if not what and run.code and run.code not in (REFUSED, DAMAGED if name == "verify" else REFUSED):
            what = f"exit code {run.code}"
        if not what and run.code == REFUSED:
            what = _unclear(run.err)
        if not what and not sealed:
            what = _as_found(name, run, intact[name], harmless)
        if what:
            found.append(Fault(name, what, (run.err or run.out)[-2000:]))
    return found


def _crash(run: Trial, intact: Trial) -> str:
    if run.peak_bytes > intact.peak_bytes + MORE_BYTES:
        return f"{(run.peak_bytes - intact.peak_bytes) / 1e6:.0f} MB above the intact run"
    if run.ended:
        return "did not end"
    if run.seconds > max(MOST_SECONDS, 3 * intact.seconds):
        return f"took {run.seconds:.1f} s of processors"
    if run.code < 0:
        return f"signal {-run.code}"
    for sign in ("Traceback", "internal error", "panicked at"):
        if sign in run.err or (sign in run.out and sign != "internal error"):
            return sign
    return ""


def _unclear(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("edgekit: error:")]
    if len(lines) != 1:
        return f"{len(lines)} error lines"
    return f"an error line of {len(lines[0])} characters" if len(lines[0]) > LONGEST_LINE else ""


def _as_found(name: str, run: Trial, intact: Trial, harmless: bool) -> str:
    if harmless and run.code:
        return "refused, though nothing that it lists was changed"
    if name == "run" and run.code == 0 and answer(run.out) != answer(intact.out):
        return "another answer"
    if name == "verify" and run.code == 0 and not harmless:
        return "not found"
    return ""
