"""The folder that an export writes to: what is there already, and making room for what comes.

Nothing is removed but what exports have written: files that a manifest lists, and what an export leaves
behind when it is interrupted.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from edgekit.export.errors import ExportError
from edgekit.export.formats.base import Format
from edgekit.export.formats.packages.cut import COMPILED_FOLDER, PACKAGE_FOLDER
from edgekit.export.formats.packages.store import JOURNAL as PACKAGE_JOURNAL
from edgekit.flashload import bundle_set
from edgekit.flashload import manifest as manifests
from edgekit.flashload.errors import DiskFull, EdgekitError, MalformedFile, cut
from edgekit.flashload.files import existing, free_bytes, write_failed
from edgekit.flashload.sizes import size
from edgekit.runtime.bundle import Bundle

#: Of the first line of a journal, which anyone may have written.
_MOST_LETTERS = 10_000


@dataclass(frozen=True)
class Found:
    """An earlier export in a folder: a set of bundles (`several`) or one, whole or unfinished. `members` has
    what is in the folders of a set by their names, where that was asked for.
    """

    path: Path
    several: bool
    whole: bool
    members: Mapping[str, Found | None] = field(default_factory=dict)

    @cached_property
    def bundle(self) -> Bundle:
        """One that is whole, opened once. Raises as `Bundle.open` does."""
        return Bundle.open(self.path)


@dataclass(frozen=True)
class Claimed:
    """A folder that an export writes to, known by what no other folder has while this one is there. `found`
    is what an earlier export has left there and this one goes on with.
    """

    path: Path
    device: int
    inode: int
    found: Found | None = field(default=None, compare=False)

    @classmethod
    def of(cls, path: Path, found: Found | None = None) -> Claimed:
        """The folder that is at `path`."""
        status = os.stat(path)
        return cls(path, status.st_dev, status.st_ino, found)

    def check(self) -> None:
        """To be called before files in it are opened by their path: another folder may have come there.

        Raises:
            ExportError: it is no longer at its path.
        """
        try:
            there = self == Claimed.of(self.path)
        except OSError:
            there = False
        if not there:
            raise ExportError(
                f"{self.path}: was moved away or replaced during the export, which writes nothing to another "
                "folder; move it back and go on with --resume"
            )


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """Errors about a full disk with the file (else the folder) and how the export goes on.

    Raises:
        DiskFull: in place of those and of the system's own.
    """
    try:
        yield
    except (OSError, DiskFull) as error:
        failed = error if isinstance(error, DiskFull) else write_failed(str(error.filename or output), error)
        if not isinstance(failed, DiskFull):
            raise
        raise DiskFull(f"{failed}, then the same export with --resume goes on where it stopped") from error


def report_journal(weights: Path) -> Path:
    """The journal of reports on finished runs, kept until the export is finished."""
    return weights.with_name(weights.name + ".report")


def _begun(journal: Path) -> str:
    """The options of the export that left the journal of reports; empty where it does not say."""
    try:
        with open(journal, encoding="utf-8", errors="replace") as file:
            options = json.loads(file.readline(_MOST_LETTERS))["options"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    return options if isinstance(options, str) else ""


def begun_with(journal: Path) -> str:
    """Describe the options of the export that left the journal of reports, as a half sentence; empty where it
    does not say.
    """
    options = _begun(journal)
    return f" (it was begun with {cut(options, 200)})" if options else ""


def told_apart(journal: Path, options: str) -> str:
    """Describe how the options of the export that left the journal differ from these, as a half sentence."""
    begun = _begun(journal)
    try:
        before, now = Counter(_pairs(begun)), Counter(_pairs(options))
    except ValueError:  # anyone may have written a journal
        return begun_with(journal)
    if not begun:
        return ""
    if before == now:
        return " (its options are these; files of the model, texts of --calibrate or versions differ)"
    lacking = {name for name, _ in before - now} - {name for name, _ in now - before}
    new = [shlex.join(pair) for pair in now - before] + [f"no {name}" for name in sorted(lacking)]
    return f"{begun_with(journal)[:-1]}; this one has {cut(', '.join(new), 200)})"


def _pairs(options: str) -> list[tuple[str, ...]]:
    """The options of `ExportOptions.as_words` with their values. Raises ValueError."""
    words = shlex.split(options)
    return list(zip(words[::2], words[1::2], strict=True))


def _described(output: Path, found: Found) -> str:
    """Describe the options of a finished export, as a half sentence; empty without a manifest."""
    with suppress(EdgekitError, KeyError, TypeError, AttributeError):
        members = bundle_set.load(output).members if found.several else ()
        manifest = manifests.load(output / members[0].path if members else output)
        formats = [member.format for member in members] or [manifest.format]
        named = f"format{'s' if len(formats) > 1 else ''} {' and '.join(cut(f, 20) for f in formats)}"
        return f" ({named}, preset {cut(manifest.quantization['preset'], 20)})"
    return ""


def examine(
    output: Path, weights: str, *, resume: bool, overwrite: bool, members: Sequence[str] = ()
) -> Found | None:
    """Whether the folder can be ours for one bundle, or for one in each of its folders `members`, with
    weights in files of that name. Returns what is there. Changes nothing.

    Raises:
        ExportError: why it cannot be ours.
    """
    found = find(output, weights)
    if found is not None:
        if not (resume or overwrite):
            what, they = ("bundles", "them") if found.several else ("a bundle", "it")
            state = (
                f"already holds {what}; --overwrite replaces {they}{_described(output, found)}"
                if found.whole
                else "holds an unfinished export; --resume continues it, --overwrite starts again"
                + begun_with(report_journal(output / weights))
            )
            raise ExportError(f"{output}: {state}; or give another folder")
        if resume and found.several != bool(members):
            held, advice = (
                ("bundles for several formats", "leave --format and --min-os out to go on with them")
                if found.several
                else ("one bundle", "say which with --format or --min-os to go on with it")
            )
            raise ExportError(f"{output}: holds {held}; {advice}, or start again with --overwrite")
        found = replace(found, members={member: find(output / member, weights) for member in members})
        _refuse_links(output)
        if overwrite and found.several:
            _earlier_set(output)
    above = existing(output)
    if not above.is_dir():
        raise ExportError(f"{output}: {above} is a file; give another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        which = "" if above == output else f"{above} "
        raise ExportError(f"{output}: {which}cannot be written to; give another folder")
    return found


def check_space(output: Path, nbytes: int) -> None:
    """Refuse an export of that many bytes that the disk of the folder has no room for, counting what the
    folder holds: it is continued or replaced.

    Raises:
        ExportError: how much is needed, and how much there is.
    """
    held = sum(p.stat().st_size for p in output.rglob("*") if p.is_file()) if output.is_dir() else 0
    free = free_bytes(output)
    if nbytes - held > free:
        if shutil.disk_usage(existing(output)).total == 0:  # such as /proc
            raise ExportError(f"{output}: {existing(output)} cannot be written to; give another folder")
        raise ExportError(
            f"{output}: the bundle takes about {size(nbytes)}, and {existing(output)} has {size(free)} left; "
            "free some space, or give a folder on another disk"
        )


def claim(
    output: Path, weights: str, found: Found | None, *, overwrite: bool, several: bool = False
) -> Claimed:
    """Make a folder ours in which `examine` has found that: for a set of bundles (`several`) or one.

    Raises:
        ExportError: the set that is to be replaced cannot be read.
    """
    if found is not None and overwrite:
        _clear_set(output) if found.several else _clear_bundle(output, weights)
        if not several:
            (output / bundle_set.PARTIAL_NAME).unlink(missing_ok=True)
        found = None
    output.mkdir(parents=True, exist_ok=True)
    return Claimed.of(output, found)


def _refuse_links(folder: Path) -> None:
    """Refuse links and what is no file among the leftovers of an earlier export: they may have been planted,
    and nothing is written through a link.

    Raises:
        ExportError: which.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                kind = "a symbolic link" if path.is_symlink() else "not a regular file"
                raise ExportError(
                    f"{path}: is {kind}, which exports neither write nor follow; remove it, or give "
                    "another folder"
                )


def find(output: Path, weights: str) -> Found | None:
    """Find what an earlier export has left in a folder; None if it is empty or not there.

    Raises:
        ExportError: the folder holds other things, or is none.
    """
    if output.exists() and not output.is_dir():
        raise ExportError(f"{output}: is a file; give a folder")
    if not output.exists() or not any(output.iterdir()):
        return None
    if (output / manifests.MANIFEST_NAME).exists():
        return Found(output, several=False, whole=True)
    for name, whole in ((bundle_set.SET_NAME, True), (bundle_set.PARTIAL_NAME, False)):
        if (output / name).exists():
            return Found(output, several=True, whole=whole)
    # Weights alone are no sign of an export: a checkpoint may have a file of that name.
    if any(path.exists() for path in _leftovers(output / weights)):
        return Found(output, several=False, whole=False)
    raise ExportError(f"{output}: holds files that are not a bundle; give an empty or new folder")


def _leftovers(weights: Path) -> list[Path]:
    """Files that stand beside the weights until an export is finished."""
    journals = [weights.with_name(weights.name + end) for end in (".journal", ".partial")]
    return [*journals, report_journal(weights), weights.parent / PACKAGE_JOURNAL]


def _clear_bundle(folder: Path, weights: str) -> None:
    listed = [weights]
    manifest = folder / manifests.MANIFEST_NAME
    if manifest.exists():
        # One that is damaged or of a newer version is replaced too; what it listed cannot be known then.
        with suppress(EdgekitError):
            earlier = manifests.load(folder)
            listed += [earlier.weights.file, *earlier.files]
        # The manifest goes first: from here on the folder is not a bundle until a new one is complete.
        manifest.unlink()
    _remove(folder, listed)
    shutil.rmtree(folder / PACKAGE_FOLDER, ignore_errors=True)
    if (
        folder / PACKAGE_JOURNAL
    ).exists():  # no manifest has listed them yet, and others would be taken for new
        shutil.rmtree(folder / COMPILED_FOLDER, ignore_errors=True)
    for path in _leftovers(folder / weights):
        path.unlink(missing_ok=True)


def _clear_set(output: Path) -> None:
    """Leaves the name of an unfinished set, so that the folder stays ours."""
    whole, partial = output / bundle_set.SET_NAME, output / bundle_set.PARTIAL_NAME
    earlier = _earlier_set(output)
    if whole.exists():
        os.replace(whole, partial)
    for member in earlier.members:
        if (output / member.path).is_dir():
            _clear_bundle(output / member.path, Format.WEIGHTS_FILE)
    _remove(output, [*earlier.files, *(f"{m.path}/{manifests.MANIFEST_NAME}" for m in earlier.members)])


def _earlier_set(output: Path) -> bundle_set.BundleSet:
    """The set in a folder, whole or unfinished. Raises ExportError where it cannot be read."""
    whole = (output / bundle_set.SET_NAME).exists()
    try:
        return bundle_set.load(output, bundle_set.SET_NAME if whole else bundle_set.PARTIAL_NAME)
    except MalformedFile as error:
        raise ExportError(f"{error}; --overwrite needs it to know what to replace") from None


def _remove(folder: Path, names: Sequence[str]) -> None:
    """Remove files below a folder, and the folders that are empty then."""
    inside = folder.resolve()
    for name in names:
        path = folder / name
        if not path.parent.resolve().is_relative_to(inside):
            continue  # behind a link: somebody else's
        path.unlink(missing_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            if (folder / parent).is_dir() and not any((folder / parent).iterdir()):
                (folder / parent).rmdir()
