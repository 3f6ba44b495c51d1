"""What a memory budget has to hold besides weights, and the residency plan for what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.flashload.errors import BudgetExceeded
from edgekit.flashload.format import Run
from edgekit.flashload.plan import DENSE_SMALL, Plan, Unit, plan
from edgekit.flashload.reader import FlashFile
from edgekit.flashload.sizes import exact_size
from edgekit.runtime.bundle import Bundle, Model
from edgekit.runtime.integer_product import takes_uint8
from edgekit.runtime.packages import Packages
from edgekit.runtime.prefix import PrefixKV
from edgekit.runtime.process import machine_memory, resident_bytes

#: Share of the weight budget that reading ahead may take beyond the two largest runs, and its limit.
RING_SHARE, RING_MOST = 8, 256 << 20
#: What the process allocates later and nothing below counts: sessions of programs, thread stacks, the
#: tokenizer.
ALLOWANCE_BYTES = 48 << 20
#: What processes that do the same differ by when they come to plan.
NEXT_PROCESS_BYTES = 1 << 20
#: Runs up to this size are pinned before any other: their reads are too short to hide behind computation.
SMALL_RUN_BYTES = 1 << 20


@dataclass(frozen=True)
class Needs:
    """Bytes besides weights, by cause. `process` is what the process already holds."""

    process: int
    prefix: int
    activations: int
    scratch: int
    allowance: int = ALLOWANCE_BYTES

    @property
    def total(self) -> int:
        return self.process + self.prefix + self.activations + self.scratch + self.allowance


def needs(bundle: Bundle, file: FlashFile, positions: int, canvas: int) -> Needs:
    """For prefixes of up to `positions` positions and passes over up to `canvas` positions."""
    model, packages = bundle.model, bundle.packages
    if packages is not None:
        # No function takes longer ones.
        positions = min(positions, max(p for _, p in packages.lengths()))
    prefix = PrefixKV([(x.kv_heads, x.head_dim, x.window) for x in model.layers])
    prefix_bytes = prefix.bytes_at(positions) if model.causal_prefix else 0
    seen = canvas + (positions if model.causal_prefix else 0)
    return Needs(
        process=resident_bytes(),
        prefix=2 * prefix_bytes,  # a buffer that grows is copied while the old one lives
        activations=_activations(model, file, canvas, seen)
        if packages is None
        else _package_activations(model, packages, canvas, seen),
        # What a system makes of a package besides its bytes is its own.
        scratch=0
        if packages is not None
        else _scratch(
            model,
            file,
            copies=bundle.manifest.programs.get("format") == "mlx",
            uint8=takes_uint8(bundle.manifest),
        ),
    )


def _package_activations(model: Model, packages: Packages, canvas: int, seen: int) -> int:
    """What goes in and out of the largest function in float32, as it is, padded and converted, and what lies
    between: scores of attention and outputs of matrices, of which packages do not tell the sizes.
    """
    most = 0
    for package in packages.entries.values():
        for function in package.functions:
            ports = (*function.inputs.values(), *function.outputs.values())
            most = max(most, sum(3 * 4 * math.prod(port.shape) for port in ports))
    rows = max([canvas, *(t for t, _ in packages.lengths())])
    heads = max(max(layer.kv_heads, model.hidden_size // layer.head_dim) for layer in model.layers)
    tile = max(package.rows for package in packages.head)
    layer = 3 * heads * rows * seen * 4 + 2 * rows * 16 * model.hidden_size * 4
    return most + max(layer, 3 * rows * tile * 4)


def _activations(model: Model, file: FlashFile, canvas: int, seen: int) -> int:
    """Outputs of one layer at a time in float32 with their int8 forms, its attention scores, and a tile of
    the head.
    """
    layer = 0
    for kind in {x.program: x for x in model.layers}.values():
        outputs = sum(s.shape[0] for s in file.run(kind.run).tensors if s.name.endswith(".scales"))
        outputs += sum(s.shape[0] for s in file.run(kind.run).tensors if s.dtype == "BF16")
        query = next(
            (
                s.shape
                for s in file.run(kind.run).tensors
                if ".q_proj." in s.name and s.name.endswith("scales")
            ),
            (model.hidden_size,),
        )
        heads = max(1, query[0] // kind.head_dim)
        attention = 3 * heads * canvas * seen * 4 + 4 * heads * seen * kind.head_dim * 4
        layer = max(layer, 2 * canvas * (outputs + 8 * model.hidden_size) * 4 + attention)
    table = model.head or model.embedding
    tile = max(stop - start for _, start, stop in table.spans())
    head = 6 * canvas * tile * 4 + 3 * canvas * model.hidden_size * 4
    if model.self_conditioning:
        head += 2 * tile * model.hidden_size * 4 + 2 * canvas * model.hidden_size * 4
    return max(layer, head)


def _scratch(model: Model, file: FlashFile, copies: bool, uint8: bool) -> int:
    """Unpacked and widened weights, and the weights themselves where the engine copies them. `uint8`: it also
    copies 8-bit matrices.
    """
    dense = [file.run(x.run) for x in model.layers]
    experts = [file.run(x.experts[0]) for x in model.layers if x.experts]
    tables = [file.run(r) for r in (model.head or model.embedding).runs]
    others = [file.run("self_conditioning")] if model.self_conditioning else []

    def of(run: Run) -> int:
        widened = max((8 * s.shape[0] * s.shape[1] for s in run.tensors if s.dtype == "BF16"), default=0)
        widened += sum(2 * s.nbytes for s in run.tensors if s.dtype == "F16")
        return widened + (run.length if copies else 0)

    passing = max(max(map(of, dense)) + max(map(of, experts), default=0), max(map(of, tables), default=0))
    return passing + _unpacked([*dense, *experts, *others], uint8)


def _unpacked(runs: Sequence[Run], uint8: bool) -> int:
    """Buffers of 8-bit codes: an engine keeps one for each name that a matrix has in its run."""
    buffers: dict[str, int] = {}
    for run in runs:
        for s in run.tensors:
            name = s.name.removeprefix(run.name + ".")
            if name.endswith(".packed"):
                size = 2 * s.shape[0] * s.shape[1]
            elif uint8 and s.dtype == "I8":
                size = s.nbytes
            else:
                continue
            matrix = name.rpartition(".")[0]
            buffers[matrix] = max(size, buffers.get(matrix, 0))
    return sum(buffers.values())


def units(model: Model, file: FlashFile, packages: Packages | None = None) -> tuple[list[Unit], list[Unit]]:
    """What every step uses, in execution order, and what is only looked up row by row (an embedding that is
    not the head as well).
    """

    def unit(name: str, group: str) -> Unit:
        held = packages.entries.get(name) if packages is not None else None
        size = file.run(name).length if held is None else held.nbytes
        return Unit(name, size, DENSE_SMALL if size <= SMALL_RUN_BYTES and group != "expert" else group)

    step = [unit("self_conditioning", "self-conditioning")] if model.self_conditioning else []
    for layer in (model.layers[chunk[0]] for chunk in model.chunks):
        step.append(unit(layer.run, "layer"))
        step += [unit(e, "expert") for e in layer.experts]
    step.append(unit("final", "final"))
    step += [unit(r, "head") for r in (model.head or model.embedding).runs]
    looked_up = [unit(r, "embedding") for r in model.embedding.runs] if model.head is not None else []
    return step, looked_up


def residency(
    bundle: Bundle, file: FlashFile, needs: Needs, memory_bytes: int | None, resident_bytes: int | None
) -> Plan:
    """The residency plan under a budget for the whole process; None is no limit. `resident_bytes` caps pins
    further.

    Raises:
        BudgetExceeded: the budget cannot hold the process, two runs and the rest; says how much would.
    """
    step, looked_up = units(bundle.model, file, bundle.packages)
    # A layer's dense run is held while its experts pass: room for it anywhere and two experts besides.
    ring_units = 3 if any(layer.experts for layer in bundle.model.layers) else 2
    left = None if memory_bytes is None else memory_bytes - needs.total
    try:
        return divide(step, looked_up, ring_units, left, resident_bytes)
    except BudgetExceeded as error:
        # The next process may be a little larger than this one.
        wanted = needs.total + error.needed_bytes + (NEXT_PROCESS_BYTES if needs.process else 0)
        raise BudgetExceeded(
            f"{bundle.path}: a memory budget of {exact_size(memory_bytes or 0)} is too small; this model and "
            f"length need at least {_mb(wanted)} (process {_mb(needs.process + needs.allowance)}, "
            f"activations {_mb(needs.activations)}, prefix {_mb(needs.prefix)}, "
            f"unpacked weights {_mb(needs.scratch)}, reading ahead {_mb(error.needed_bytes)})",
            wanted,
        ) from None


def check_machine(bundle: Bundle, file: FlashFile, needs: Needs, weights_bytes: int) -> None:
    """Refuse what a session without a budget takes, `weights_bytes` in memory and `needs`, where the machine
    has less: it would be killed, or push everything else out of memory.

    Raises:
        BudgetExceeded: says what is needed, what there is, and the least budget.
    """
    wanted, machine = needs.total + weights_bytes, machine_memory()
    if machine is None or wanted <= machine:
        return
    try:
        residency(bundle, file, needs, 1, None)
        raise AssertionError("nothing fits into one byte")
    except BudgetExceeded as error:
        least = error.needed_bytes
    if least <= machine:
        advice = (
            f"give a memory budget (--memory), at least {_mb(least)}: weights that it does not hold are read "
            "from the disk"
        )
    else:
        advice = (
            f"with weights read from the disk it is still {_mb(least)}: ask for fewer tokens or give a "
            "shorter prompt"
        )
    raise BudgetExceeded(
        f"{bundle.path}: this model and length need {_mb(wanted)} (weights {_mb(weights_bytes)}, process "
        f"{_mb(needs.process + needs.allowance)}, activations {_mb(needs.activations)}, prefix "
        f"{_mb(needs.prefix)}, unpacked weights {_mb(needs.scratch)}) and this machine has {_mb(machine)}; "
        f"{advice}",
        least,
    )


def divide(
    step: Sequence[Unit],
    looked_up: Sequence[Unit],
    ring_units: int,
    budget_bytes: int | None,
    resident_bytes: int | None,
) -> Plan:
    """The plan for weights alone: units of every step, those that are only looked up, and how many of the
    largest must be in memory at once; None is no limit. More than `ring_units` units are in every step.

    Raises BudgetExceeded with the smallest budget that is enough.
    """
    everything = sum(u.nbytes for u in (*step, *looked_up))
    budget = everything if budget_bytes is None else budget_bytes
    ring = min(RING_MOST, max(0, min(budget, everything)) // RING_SHARE)
    if resident_bytes is not None:
        largest = sorted((u.nbytes for u in step), reverse=True)[:ring_units]
        # A budget that holds every unit would pin every unit, whatever the cap.
        below = max(resident_bytes, sum(u.nbytes for u in step) - 1)
        budget = min(budget, resident_bytes + max(ring, sum(largest)), below)
        ring = max(0, budget - resident_bytes)
    planned = plan(step, max(0, budget), ring_bytes_min=ring, ring_units=ring_units)
    left = budget - planned.footprint_bytes
    extra = []
    if planned.ring_bytes == 0:
        for u in looked_up:
            if u.nbytes <= left:
                left -= u.nbytes
                extra.append(u)
    pinned = planned.pinned | {u.name for u in extra}
    return Plan(
        planned.units, frozenset(pinned), planned.streamed, planned.ring_bytes,
        planned.pinned_bytes + sum(u.nbytes for u in extra), planned.streamed_bytes, planned.budget_bytes,
    )  # fmt: skip


def _mb(count: int) -> str:
    return f"{-(-count // 1_000_000)} MB"
