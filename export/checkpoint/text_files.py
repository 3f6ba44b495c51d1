"""Small files of a checkpoint: regular files of bounded size, and JSON objects in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgekit.export.checkpoint.errors import CheckpointError, LfsPointer, WeightsUnreadable
from edgekit.flashload.errors import MalformedFile, OpenFailed
from edgekit.flashload.files import read_table
from edgekit.flashload.strictjson import MAX_MARKS, marks
from edgekit.runtime.errors import one_line
from edgekit.runtime.hub.repository import origin

#: Published configs have some 10 kB, the index of a model of 1000 GB some 10 MB. Parsed, JSON may take fifty
#: times its size.
MOST_CONFIG_BYTES = 4 << 20
MOST_INDEX_BYTES = 64 << 20


def is_there(path: Path) -> bool:
    """Whether the checkpoint has this file, be it one that can be read or not."""
    return os.path.lexists(path)


def read_file(path: Path, most_bytes: int, error_class: type[CheckpointError]) -> bytes:
    """The bytes of a file. Raises `error_class` for one of more than `most_bytes`, WeightsUnreadable for
    one that is no regular file or cannot be read, LfsPointer.
    """
    try:
        content = read_table(path, most_bytes, "such file of a checkpoint", "download it again")
    except OpenFailed as error:
        raise WeightsUnreadable(str(error)) from error
    except MalformedFile as error:
        raise error_class(str(error)) from error
    refuse_lfs_pointer(content, path)
    return content


def refuse_lfs_pointer(head: bytes, path: Path) -> None:
    """Raises LfsPointer if what begins with `head` is one."""
    if head.startswith(b"version https://git-lfs"):
        raise LfsPointer(
            f"{path}: is a Git LFS pointer, not the file itself; run `git lfs pull` in the repository"
        )


def stays_inside(path: Path, folder: Path) -> bool:
    """Whether a file below `folder`, that of a checkpoint, is in it once links are followed: elsewhere it is
    the user's own, and bundles are published. Snapshots in the hub's cache consist of links to its blobs.
    """
    found, inside = os.path.realpath(path), Path(os.path.realpath(folder))
    if Path(found).is_relative_to(inside):
        return True
    came = origin(folder)
    blobs = os.path.realpath(inside.parent.parent / "blobs")
    return came is not None and came[0] is not None and Path(found).is_relative_to(blobs)


def read_json_object(path: Path, most_bytes: int, error_class: type[CheckpointError]) -> dict[str, Any]:
    """The JSON object in a file. Raises `error_class` for anything else, otherwise as `read_file`."""
    raw = read_file(path, most_bytes, error_class)
    check_marks(raw, path, error_class)
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON and numbers of too many digits too
        raise error_class(f"{path}: is not valid JSON ({one_line(error)}); download it again") from error
    if not isinstance(value, dict):
        raise error_class(f"{path}: holds a {type(value).__name__} where a JSON object is expected")
    return value


def read_config(
    folder: Path, name: str, kind: str, absent: type[CheckpointError], malformed: type[CheckpointError]
) -> dict[str, Any]:
    """The JSON object in file `name` of a folder with weights, such as those of "a PEFT adapter", its kind.
    Raises `absent` where there is no such folder or file, `malformed` for anything else than an object,
    otherwise as `read_file`.
    """
    if not folder.is_dir():
        found = "is a file" if folder.is_file() else "does not exist"
    elif not is_there(folder / name):
        found = f"has no {name}"
    else:
        return read_json_object(folder / name, MOST_CONFIG_BYTES, malformed)
    raise absent(f"{folder}: {found}; give the folder that holds {name} and the weights of {kind}")


def check_marks(raw: bytes, path: Path, error_class: type[CheckpointError]) -> None:
    """Refuse JSON of `path` that would take far more memory and time than its size, before it is parsed.
    Raises `error_class`. An index has 2 marks for a tensor, a safetensors header 12.
    """
    if marks(raw) > MAX_MARKS:
        raise error_class(
            f"{path}: has more values than any such file of a checkpoint (over {MAX_MARKS} marks of JSON); "
            "download it again"
        )
