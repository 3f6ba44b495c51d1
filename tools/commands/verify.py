"""`edgekit verify`: every checksum of a bundle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from edgekit.flashload import bundle_set
from edgekit.flashload.bundle_folder import check_folder_file
from edgekit.flashload.errors import BundleError, EdgekitError, OpenFailed
from edgekit.flashload.manifest import MANIFEST_NAME
from edgekit.flashload.sizes import size
from edgekit.tools.console import Steps, command_line, note
from edgekit.tools.failures import DAMAGED, Failure
from edgekit.tools.help import Command
from edgekit.tools.options import bundle_argument, bundle_folder, debug_option, json_option
from edgekit.tools.terminal_text import counted, enumerated, visible

if TYPE_CHECKING:
    from edgekit.flashload.manifest import FileEntry, WeightsEntry
    from edgekit.runtime.bundle import Bundle
    from edgekit.runtime.bundle.packages import Packages

_BLOCK_BYTES = 4 << 20
#: Notes on files that belong to nothing, each on a line.
_MOST_SURPLUS = 3


#: How the core begins what it says of a file whose header is damaged.
_OF_HEADER = "its header: "
#: What errors say to do about damage, as the last line does.
_ADVICE = (
    "; copy or export it again", "; copy or export the bundle again", "; export or copy it again",
    "; copy it again",
)  # fmt: skip
#: How names of headers end, which begin with those of their files.
_HEADER = " header"


@dataclass(frozen=True)
class Item:
    """One thing that was checked: `nbytes` as the manifest has it, `damage` empty when all is well. Things of
    different kinds hold each other: a damaged run makes its file a damaged one too.
    """

    name: str
    nbytes: int
    damage: str = ""
    kind: str = "file"


@click.command(
    "verify",
    cls=Command,
    short_help="Check every checksum of a bundle.",
    examples=("edgekit verify tiny-gemma-host-mixed4",),
)
@bundle_argument
@click.option(
    "--evaluate",
    is_flag=True,
    help="Also compute with Core ML packages, one of each kind: slow, takes memory.",
)
@json_option
@debug_option
@click.pass_context
def command(ctx: click.Context, bundle: str, evaluate: bool, as_json: bool) -> None:
    """Check every byte of BUNDLE against its checksums, and of every bundle where it has several.

    Each run of the flash file against its xxh3-64, the whole flash file and every other file against their
    SHA-256; of packages also that they have the functions that the manifest declares. Prints what is damaged;
    the exit code is 0 when nothing is, 1 otherwise.
    """
    path = Path(bundle_folder(bundle, quiet=as_json, to_run=False))
    with Steps("opening", quiet=as_json) as steps:
        notes: list[str] = []
        items = list((_check_set if bundle_set.is_set(path) else _check)(path, steps, notes, evaluate))
        surplus = _surplus(path, items)
    damaged = [i for i in items if i.damage]
    if as_json:
        report = {
            "bundle": bundle,
            "ok": not damaged,
            "items": [asdict(i) for i in items],
            "surplus": surplus,
            "notes": notes,
        }
        click.echo(json.dumps(report))
    else:
        for item in _told(damaged):
            click.echo(visible(f"damaged: {item.name}: {' '.join(item.damage.splitlines())}"))
        for line in (*notes, *_surplus_notes(surplus)):
            note(f"note: {line}")
        if damaged:
            said = f"{_counted_damage(items)} damaged; copy or export it again{_mending(bundle, items)}"
        else:
            kinds = Counter(i.kind for i in items)
            read = size(sum(i.nbytes for i in items))
            every = enumerated([counted(number, kind) for kind, number in kinds.items()])
            said = f"all is as it was written: {every}, {read} read"
        click.echo(visible(f"{bundle}: {said}"))
    if damaged:
        ctx.exit(DAMAGED)


def _told(damaged: Sequence[Item]) -> Iterator[Item]:
    """Each as it is told to people: what is wrong with a header once, not with its file too, and without the
    advice that follows all of them.
    """
    said = {each.name: _without_advice(each.damage) for each in damaged}
    for each in damaged:
        of_header = each.damage.startswith(_OF_HEADER) and f"{each.name}{_HEADER}" in said
        of_file = each.kind == "header" and said.get(each.name.removesuffix(_HEADER)) == said[each.name]
        if not (of_header or of_file):
            yield replace(each, damage=said[each.name])


def _without_advice(damage: str) -> str:
    for advice in _ADVICE:
        damage = damage.removesuffix(advice)
    return damage


def _counted_damage(items: Sequence[Item]) -> str:
    """How many things of each kind are damaged, with the verb."""
    every, damaged = Counter(i.kind for i in items), Counter(i.kind for i in items if i.damage)
    said = enumerated([f"{damaged[kind]} of {counted(every[kind], kind)}" for kind in every if damaged[kind]])
    return f"{said} {'is' if damaged.total() == 1 else 'are'}"


def _mending(bundle: str, items: Sequence[Item]) -> str:
    """How to bring what is damaged alone; empty where a fetch mends nothing: of several bundles it brings
    one, and without a manifest none is there.
    """
    from edgekit.runtime.hub.bundles import is_on_hub

    unlisted = any(each.damage and each.name == MANIFEST_NAME for each in items)
    if unlisted or is_on_hub(bundle) or bundle_set.is_set(bundle):
        return ""
    return f", or bring the damaged parts: {command_line('fetch', 'SOURCE', Path(bundle), '--repair')}"


def _check_set(path: Path, steps: Steps, notes: list[str], evaluate: bool) -> Iterator[Item]:
    """Every item of a set, those of its bundles under their paths."""
    try:
        bundles = bundle_set.load(path)
    except EdgekitError as error:
        # It names the bundles: without it nothing else can be checked.
        yield Item(bundle_set.SET_NAME, 0, str(error))
        return
    yield Item(bundle_set.SET_NAME, (path / bundle_set.SET_NAME).stat().st_size)
    _refuse_unreadable(path / name for name in bundles.files)
    manifests = {f"{member.path}/{MANIFEST_NAME}" for member in bundles.members}
    for name, entry in bundles.files.items():
        check = partial(check_folder_file, path, name, entry.size, entry.xxh3)
        damage = _file_damage(path / name, check, entry.sha256, steps)
        if damage or name not in manifests:  # which the bundles count themselves
            yield Item(name, entry.size, damage)
    for member in bundles.members:
        own: list[str] = []
        try:
            for item in _check(path / member.path, steps, own, evaluate):
                yield replace(item, name=f"{member.path}/{item.name}")
            yield Item(member.path, 0, "", "bundle")
        except OpenFailed as error:
            yield Item(member.path, 0, str(error), "bundle")
        notes += [f"{member.path}: {line}" for line in own]


def _check(path: Path, steps: Steps, notes: list[str], evaluate: bool) -> Iterator[Item]:
    """Every item of the bundle; what could not be checked is added to `notes`. Raises EdgekitError when there
    is no bundle at `path`.
    """
    from edgekit.runtime.bundle import Bundle

    try:
        bundle = Bundle.open(path)
    except OpenFailed:
        raise
    except EdgekitError as error:
        # The manifest lists the checksums: without it nothing else can be checked.
        yield Item(MANIFEST_NAME, 0, str(error))
        return
    manifest = bundle.manifest
    _refuse_unreadable(path / name for name in (manifest.weights.file, *manifest.files))
    yield Item(MANIFEST_NAME, (path / MANIFEST_NAME).stat().st_size)
    yield from _check_runs(bundle, steps)
    files: dict[str, WeightsEntry | FileEntry] = {manifest.weights.file: manifest.weights, **manifest.files}
    steps.stage("SHA-256", sum(e.size for e in files.values()))
    damaged = set()
    for name, entry in files.items():
        damage = _file_damage(path / name, partial(bundle.folder.check, name), entry.sha256, steps)
        damaged |= {name} if damage else set()
        yield Item(name, entry.size, damage)
    if bundle.packages is not None:
        checked = list(_check_packages(bundle, bundle.packages, damaged, steps, notes))
        yield from checked
        if evaluate and (damaged or any(i.damage for i in checked)):
            notes.append("nothing was computed: the bundle is damaged")
        elif evaluate:
            yield from _evaluate(bundle, steps, notes)
    elif evaluate:
        notes.append("--evaluate is for Core ML packages, and this bundle has none; nothing was computed")


def _refuse_unreadable(paths: Iterable[Path]) -> None:
    """A file that may not be read is not known to be damaged. Raises Failure, which names it."""
    for path in paths:
        if path.is_file() and not os.access(path, os.R_OK):
            raise Failure(f"{path}: cannot be read ({os.strerror(errno.EACCES)}); change its permissions")


def _check_packages(
    bundle: Bundle, packages: Packages, damaged: set[str], steps: Steps, notes: list[str]
) -> Iterator[Item]:
    """Check the declarations of packages of undamaged files. Their bytes count with their files."""
    from edgekit.runtime.checks.declarations import damage
    from edgekit.runtime.errors import EngineUnavailable

    steps.stage("packages", len(packages.entries))
    for name, package in packages.entries.items():
        if damaged & set(package.files):
            continue
        try:
            yield Item(f"package {name}", 0, damage(bundle.path, packages, package), "package")
        except EngineUnavailable as error:
            notes.append(f"functions of packages were not checked: {error}")
            return
        steps.advance(1, name)


def _evaluate(bundle: Bundle, steps: Steps, notes: list[str]) -> Iterator[Item]:
    """Evaluate one package of each kind."""
    from edgekit.runtime.checks.evaluation import NOT_COVERED, distinct, evaluate

    if bundle.manifest.format != "coreml":
        notes.append("--evaluate is for Core ML packages; nothing was computed")
        return
    if notes:  # what reads packages is missing, and has been noted
        return
    notes.append(NOT_COVERED)
    names = distinct(bundle)
    steps.stage("computing", len(names))
    for name in names:
        yield Item(f"package {name} computed", 0, evaluate(bundle, name), "computed package")
        steps.advance(1, name)


def _check_runs(bundle: Bundle, steps: Steps) -> Iterator[Item]:
    name = bundle.manifest.weights.file
    try:
        file = bundle.open_weights()
    except BundleError as error:
        said = str(error).removeprefix(f"{bundle.path / name}: ")
        yield Item(f"{name}{_HEADER}", 0, said, "header")
        return
    with file:
        steps.stage("runs", sum(r.length for r in file.layout.runs))
        for run in file.layout.runs:
            damage = ""
            try:
                file.verify(run)
            except BundleError as error:
                damage = str(error).removeprefix(f"{bundle.path / name}: ")
            steps.advance(run.length, run.name)
            yield Item(f"{name} run {run.name}", run.length, damage, "run")


def _file_damage(path: Path, check: Callable[[], None], sha256: str, steps: Steps) -> str:
    """Describe damage to a file, empty for none; `check` compares all but its SHA-256."""
    digest = hashlib.sha256()
    try:
        check()
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                steps.advance(len(block), path.name)
    except EdgekitError as error:
        return str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if digest.hexdigest() == sha256 else f"has SHA-256 {digest.hexdigest()}, {sha256} was written"


def _surplus_notes(surplus: Sequence[str]) -> list[str]:
    """One line for each of a few files, or one for all of many: of a folder whose name is wrong, or that
    nobody lists.
    """
    if len(surplus) <= _MOST_SURPLUS:
        return [f"{name} is not part of the bundle" for name in surplus]
    folders = Counter(PurePosixPath(name).parts[0] for name in surplus if "/" in name)
    ((most, number),) = folders.most_common(1) or (("", 0),)
    which = "all" if number == len(surplus) else f"{number} of them"
    where = f", {which} in {most}/" if number > 1 else ""
    return [f"{len(surplus)} files are not part of the bundle{where}; --json lists them"]


def _surplus(path: Path, items: Sequence[Item]) -> list[str]:
    """Files of the folder that no manifest lists, where that can be read."""
    known = {each.name for each in items}
    # Nobody knows what belongs to these.
    closed = {each.name for each in items if each.kind == "bundle" and each.damage}
    lists = MANIFEST_NAME, bundle_set.SET_NAME
    for each in items:
        if each.damage and PurePosixPath(each.name).name in lists:
            closed.add(str(PurePosixPath(each.name).parent))
    found = (p.relative_to(path) for p in path.rglob("*") if p.is_file())
    open_ones = (p.as_posix() for p in found if closed.isdisjoint(map(str, PurePosixPath(p).parents)))
    return sorted(name for name in open_ones if name not in known)
