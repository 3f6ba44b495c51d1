"""One model in several formats: a bundle for each in a folder of its own, and bundles.json beside them.

bundles.json is written last. Until then the folder holds an unfinished set under another name of that file,
see `edgekit.flashload.bundle_set`, which `resume` continues: bundles that are whole stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from edgekit.export.checkpoint import Checkpoint
from edgekit.export.output_folder import Claimed, Found, claim, examine, resumable
from edgekit.export.pipeline import (
    ExportOptions,
    ExportPlan,
    ExportResult,
    Progress,
    begin,
    check_leftovers,
    check_output,
    plan_export,
    write_each,
)
from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.bundle_set import BundleSet, Member
from edgekit.flashload.errors import EdgekitError
from edgekit.flashload.sizes import size


def plan_together(
    model: Path | Checkpoint,
    each: Sequence[ExportOptions],
    limit_bytes: int | None,
    asked: Collection[str] = (),
) -> tuple[list[ExportPlan], str]:
    """The plans of an export in several formats whose weights stay below `limit_bytes` together, None being
    no limit. Where they do not, or one of the formats cannot have the model, the plan of the first alone, and
    why. One format has no limit.

    Raises:
        EdgekitError: what is wrong with the checkpoint, or the first format or one of `asked` cannot have it.
    """
    model = model if isinstance(model, Checkpoint) else Checkpoint.open(model)
    plans = [plan_export(model, each[0])]
    for options in each[1:]:
        try:
            plans.append(_sharing(plan_export(model, options), plans[0]))
        except EdgekitError as error:
            if options.format in asked:
                raise
            return plans[:1], str(error)
    total = sum(plan.weights_bytes for plan in plans)
    if len(plans) > 1 and limit_bytes is not None and total >= limit_bytes:
        names = " and ".join(options.format for options in each)
        why = f"{names} together have {size(total)} of weights, an app has room for {size(limit_bytes)}"
        return plans[:1], why
    return plans, ""


def check_folder(plans: Sequence[ExportPlan], output: Path, download_bytes: int = 0) -> Found | None:
    """Check the output folder as `pipeline.check_output` does, for one bundle or several, and that an export
    that is to go on is this one. To be called before weights are downloaded. Returns what is there.
    """
    folders = _folders(plans) if len(plans) > 1 else []
    found = check_output(plans, output, folders, download_bytes)
    if found is None or not plans[0].options.resume:
        return found
    for plan, each in zip(plans, [found.members[name] for name in folders] or [found], strict=True):
        check_leftovers(plan, each)
    return found


def _folders(plans: Sequence[ExportPlan]) -> list[str]:
    return [plan.options.format for plan in plans]


def _sharing(plan: ExportPlan, first: ExportPlan) -> ExportPlan:
    """The plan, with the programs of the first where they are the same."""
    return replace(plan, format=plan.format.sharing(first.format)) if plan.alike(first) else plan


def write_together(plans: Sequence[ExportPlan], output: Path, progress: Progress) -> list[ExportResult]:
    """Do what is planned, each in the folder of `output` that is named after its format. All plans have the
    same options but for formats.

    Raises:
        EdgekitError: as `pipeline.export` does.
    """
    options, weights = plans[0].options, plans[0].weights_file
    found = check_output(plans, output, _folders(plans))
    # A device takes the first that it runs. Of the same age are those that every system runs: every device
    # runs the first format, and what stands behind it in `plans` is for fewer.
    members = [_member(plan) for plan in sorted(reversed(plans), key=_preference, reverse=True)]
    folder = claim(output, weights, found, overwrite=options.overwrite, several=True)
    if folder.found is not None and folder.found.whole:
        # It is this export's, which has been checked: an unfinished one from here on.
        os.replace(output / bundle_set.SET_NAME, output / bundle_set.PARTIAL_NAME)
    with resumable(output):
        bundle_set.save(BundleSet(tuple(members)), output, bundle_set.PARTIAL_NAME)
    inside = [_claim_member(folder, plan) for plan in plans]
    with resumable(output):
        for plan, member in zip(plans, inside, strict=True):
            begin(plan, member)
    if all(plan.alike(plans[0]) for plan in plans[1:]):
        results = write_each(plans, inside, progress)
    else:
        results = []
        for plan, member in zip(plans, inside, strict=True):
            folder.check()
            results += write_each([plan], [member], progress)
    folder.check()
    files = [f"{m.path}/{manifests.MANIFEST_NAME}" for m in members]
    entries = {name: manifests.file_entry(output / name) for name in files}
    with resumable(output):
        bundle_set.save(BundleSet(tuple(members), entries), output)
    (output / bundle_set.PARTIAL_NAME).unlink()
    return results


def _claim_member(folder: Claimed, plan: ExportPlan) -> Claimed:
    """The folder of a bundle of the set in `folder`. Raises ExportError where it holds other things."""
    name, weights = plan.options.format, plan.weights_file
    if folder.found is not None:
        found = folder.found.members[name]
    else:  # what was to be overwritten is gone; the rest is somebody else's
        found = examine(folder.path / name, weights, resume=False, overwrite=False)
    return claim(folder.path / name, weights, found, overwrite=False)


def _member(plan: ExportPlan) -> Member:
    name = plan.options.format
    return Member(name, name, dict(plan.format.minimum_os() or {}), tuple(plan.options.socs or ()))


def _preference(plan: ExportPlan) -> tuple[bool, tuple[int, ...]]:
    """Greater for a bundle that stands before another: whether it has room for an answer, and the first iOS
    that runs it, which is empty where every version does.
    """
    short, first = plan.answer_shortfall, (plan.format.minimum_os() or {}).get("ios", "")
    return short is None or short[1] > 0, tuple(int(part) for part in first.split(".") if part)
