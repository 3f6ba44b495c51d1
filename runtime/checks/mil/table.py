"""The table of covered operations, as README.md shows it."""

from __future__ import annotations

from collections.abc import Mapping

from edgekit.runtime.checks.mil.ops import Op, registered

_IOS = {6: 15, 7: 16, 8: 17, 9: 18, 10: 26}


def covered_ops() -> Mapping[str, Op]:
    """The covered operations by name, in alphabetical order."""
    return dict(sorted(registered().items()))


def table() -> str:
    """The operations as a Markdown table: name, group, the iOS version that brought it, arguments, notes.

    The group is the file in ops/ that has the operation. Optional arguments are in brackets.
    """
    lines = ["| operation | group | since iOS | arguments | note |", "|---|---|---|---|---|"]
    for op in covered_ops().values():
        arguments = ", ".join([*op.required, *(f"[{name}]" for name in op.optional)])
        lines.append(f"| `{op.name}` | {op.group} | {_IOS[op.since]} | {arguments} | {op.note} |")
    return "\n".join(lines) + "\n"
