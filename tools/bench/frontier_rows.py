"""What `frontier` tells of answers: shares, intervals, means, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgekit.flashload.sizes import size
from edgekit.tools.bench.frontier_answers import Answer, Key
from edgekit.tools.intervals import mcnemar, paired_difference, wilson


@dataclass(frozen=True)
class Row:
    """A procedure on a task, or on all: shares 0..1, means per answer. `difference` is the interval of the
    change of `exact` from the first procedure, `chance` the probability that chance alone changes as much,
    `same` the share of texts that are those of the first.
    """

    procedure: str
    task: str
    count: int
    exact: float
    interval: tuple[float, float]
    difference: tuple[float, float] | None
    chance: float | None
    same: float | None
    forwards: float
    rows: float
    head_rows: float
    tokens_per_forward: float
    read: float | None


def rows(found: Mapping[Key, Answer], procedures: Mapping[str, str], tasks: Sequence[str]) -> list[Row]:
    """A row for each procedure (options by name) and task, and for all tasks where there are several."""
    groups = {task: [task] for task in tasks}
    if len(tasks) > 1:
        groups["all"] = list(tasks)
    first = next(iter(procedures.values()))
    return [
        _row(found, procedure, options, first, group, members)
        for group, members in groups.items()
        for procedure, options in procedures.items()
    ]


def _row(
    found: Mapping[Key, Answer], procedure: str, options: str, first: str, group: str, tasks: Sequence[str]
) -> Row:
    all_own = {key: answer for key, answer in found.items() if key.options == options and key.task in tasks}
    own = {key: answer for key, answer in all_own.items() if key.resident is None}
    count, right = len(own), sum(answer.right for answer in own.values())
    forwards = sum(answer.forwards for answer in own.values())
    streamed = [answer for key, answer in all_own.items() if key.resident is not None]
    a_forward = sum(each.read for each in streamed) / max(1, sum(each.forwards for each in streamed))
    difference = chance = same = None
    if options != first:
        before = {key: found[replace(key, options=first)] for key in own}
        gained = sum(answer.right and not before[key].right for key, answer in own.items())
        lost = sum(before[key].right and not answer.right for key, answer in own.items())
        same = sum(answer.text == before[key].text for key, answer in own.items()) / count
        difference, chance = paired_difference(gained, lost, count), mcnemar(gained, lost)
    return Row(
        procedure,
        group,
        count,
        right / count,
        wilson(right, count),
        difference,
        chance,
        same,
        forwards / count,
        sum(answer.rows for answer in own.values()) / count,
        sum(answer.head_rows for answer in own.values()) / count,
        sum(answer.tokens for answer in own.values()) / max(1, forwards),
        a_forward * forwards / count if streamed else None,
    )


HEADS = [
    "procedure", "right", "95 %", "change in points, 95 %", "p", "same text", "forwards", "rows", "head rows",
    "tokens a forward",
]  # fmt: skip


def table(found: list[Row]) -> str:
    """Rows as Markdown."""
    lines = []
    for task in dict.fromkeys(row.task for row in found):
        own = [row for row in found if row.task == task]
        reads = any(row.read is not None for row in own)
        heads = [*HEADS, "read"] if reads else HEADS
        lines += [
            "",
            f"{task}, {own[0].count} prompts:",
            "",
            f"| {' | '.join(heads)} |",
            "|---" * len(heads) + "|",
        ]
        for row in own:
            low, high = row.interval
            change = (
                ""
                if row.difference is None
                else "{:+.1f} … {:+.1f}".format(*(100 * x for x in row.difference))
            )
            cells = [
                row.procedure,
                f"{row.exact:.1%}",
                f"{low:.1%} … {high:.1%}",
                change,
                "" if row.chance is None else f"{row.chance:.3f}" if row.chance >= 0.0005 else "< 0.001",
                "" if row.same is None else f"{row.same:.1%}",
                f"{row.forwards:.1f}",
                f"{row.rows:.0f}",
                f"{row.head_rows:.0f}",
                f"{row.tokens_per_forward:.2f}",
            ]
            if reads:
                cells.append("" if row.read is None else size(row.read))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines[1:])


def overview(found: list[Row]) -> str:
    """Right answers and passes of every procedure on every task, as Markdown."""
    tasks = list(dict.fromkeys(row.task for row in found))
    procedures = list(dict.fromkeys(row.procedure for row in found))
    cell = {(row.procedure, row.task): f"{row.exact:.1%} in {row.forwards:.1f}" for row in found}
    return "\n".join(
        [
            "right in so many passes, by task:",
            "",
            f"| procedure | {' | '.join(tasks)} |",
            "|---" * (len(tasks) + 1) + "|",
            *(f"| {name} | {' | '.join(cell[name, task] for task in tasks)} |" for name in procedures),
        ]
    )
