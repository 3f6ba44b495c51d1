"""The role head that may lie beside a checkpoint, `role_head.safetensors`: two products over the hidden
state that the vocabulary head sees, which tell the logical role of the token that it predicts (LogicDiff,
arXiv 2603.26771).

    down.weight [W, H], down.bias [W], up.weight [5, W], up.bias [5]     scores = up(relu(down(x)))

with the metadata {"role_head": JSON of {"activation": "relu", "roles": their names in order}}: one key, for
safetensors writes several in any order. That the head has the number of parameters which W = H / 4 gives is
the paper's; the rectifier is edgekit's choice.

Every format takes it, for the core computes it, in float32: a bundle has `role_head.bin`, see
runtime/native/src/session/role_head.h.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from edgekit.export.checkpoint.errors import MalformedWeights, MissingTensor, UnsupportedDtype, WrongShape
from edgekit.export.checkpoint.safetensors_dir import FLOAT_DTYPES, read_float32
from edgekit.export.checkpoint.safetensors_file import open_safetensors
from edgekit.export.checkpoint.text_files import is_there
from edgekit.flashload.errors import cut
from edgekit.flashload.files import write_atomic
from edgekit.runtime.sampling.types import ROLES

FILE = "role_head.safetensors"
BUNDLE_FILE = "role_head.bin"
_KEY, _KIND = "role_head", json.dumps({"activation": "relu", "roles": ROLES})


def width_of(hidden_size: int) -> int:
    """The size W that LogicDiff's number of parameters implies: 4096 -> 1024 -> 5 are 4.2 million."""
    return max(1, hidden_size // 4)


@dataclass(frozen=True, eq=False)
class RoleHead:
    """Weights by their names in the file, float32."""

    weights: Mapping[str, Tensor]

    @property
    def width(self) -> int:
        """W."""
        return self.weights["down.weight"].shape[0]

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores [..., 5] of hidden states [..., H] behind the last norm."""
        w = self.weights
        inner = torch.relu(hidden @ w["down.weight"].T + w["down.bias"])
        return inner @ w["up.weight"].T + w["up.bias"]

    def stored(self) -> bytes:
        """The bytes of a bundle's file."""
        order = ("down.weight", "down.bias", "up.weight", "up.bias")
        parts = (self.weights[name].T if name.endswith("weight") else self.weights[name] for name in order)
        return b"".join(np.ascontiguousarray(part.numpy(), "<f4").tobytes() for part in parts)

    @property
    def digest(self) -> str:
        """SHA-256 of these bytes."""
        return hashlib.sha256(self.stored()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"file": BUNDLE_FILE, "width": self.width, "roles": list(ROLES)}

    def save(self, folder: Path) -> Path:
        """Write the file beside a checkpoint's; returns its path. Raises WriteFailed."""
        path = folder / FILE
        write_atomic(path, save({n: w.contiguous() for n, w in self.weights.items()}, {_KEY: _KIND}))
        return path


def read_role_head(folder: Path, hidden_size: int) -> RoleHead | None:
    """The role head of the checkpoint in `folder`, of this hidden size; None where it has none.

    Raises:
        CheckpointError: what is wrong with it.
    """
    path = folder / FILE
    if not is_there(path):
        return None
    file = open_safetensors(path)
    if (said := file.metadata.get(_KEY)) != _KIND:
        raise MalformedWeights(
            f"{path}: its metadata says {_KEY} {cut(said)}, not {_KIND}; train it with "
            "edgekit.tools.train_roles"
        )
    down = file.entries.get("down.weight")
    width = down.shape[0] if down is not None and len(down.shape) == 2 else 0
    shapes = {
        "down.weight": (width, hidden_size), "down.bias": (width,),
        "up.weight": (len(ROLES), width), "up.bias": (len(ROLES),),
    }  # fmt: skip
    weights = {}
    for name, shape in shapes.items():
        entry = file.entries.get(name)
        if entry is None:
            raise MissingTensor(f"{path}: has no tensor {name}")
        if entry.shape != shape or not width:
            raise WrongShape(
                f"{path}: {name} is {list(entry.shape)}; a role head over {hidden_size} values is "
                f"down [W, {hidden_size}] and up [{len(ROLES)}, W]: it is another model's"
            )
        if entry.dtype not in FLOAT_DTYPES:
            raise UnsupportedDtype(f"{path}: {name} is {entry.dtype}; store it as F32")
        value = torch.from_numpy(read_float32(file, entry, entry.shape, 0))
        if not bool(torch.isfinite(value).all()):
            raise MalformedWeights(f"{path}: {name} holds what is not finite; train it again")
        weights[name] = value
    return RoleHead(weights)
