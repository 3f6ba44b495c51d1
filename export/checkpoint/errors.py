"""Errors of reading a checkpoint, one class per cause. Messages name file and tensor."""

from __future__ import annotations

from edgekit.flashload.errors import EdgekitError


class CheckpointError(EdgekitError):
    """Base of everything that can be wrong with a checkpoint directory or with getting one."""


# --- the directory ------------------------------------------------------------------------------------------


class NotACheckpoint(CheckpointError):
    """The path is not a directory, or the directory has no config.json."""


class InvalidConfig(CheckpointError):
    """config.json or generation_config.json is not a JSON object."""


class MissingWeights(CheckpointError):
    """The directory holds no safetensors weights that can be found by name."""


class PickleWeights(MissingWeights):
    """The weights are pickle files, which run code when loaded."""


class InvalidIndex(CheckpointError):
    """model.safetensors.index.json is malformed or contradicts its shards."""


class MissingShard(CheckpointError):
    """The index names a file that is not there."""


# --- one weight file ----------------------------------------------------------------------------------------


class MalformedWeights(CheckpointError):
    """A weight file does not follow the safetensors format."""


class LfsPointer(MalformedWeights):
    """A file is a Git LFS pointer: the repository was cloned without its large files."""


class TruncatedWeights(CheckpointError):
    """A weight file ends before the bytes that its header promises."""


class WeightsChanged(CheckpointError):
    """A weight file was replaced or modified after the checkpoint was opened."""


class WeightsUnreadable(CheckpointError):
    """The operating system refused to open or read a file of the checkpoint."""


# --- tensors ------------------------------------------------------------------------------------------------


class DuplicateTensor(CheckpointError):
    """Two shards hold a tensor of the same name."""


class MissingTensor(CheckpointError):
    """The model needs a tensor that the checkpoint does not have."""


class SurplusTensor(CheckpointError):
    """The checkpoint has tensors that the model has no place for."""


class WrongShape(CheckpointError):
    """A tensor's shape is not the one that the config implies."""


class UnsupportedDtype(CheckpointError):
    """A tensor is stored in a type that cannot be taken as floating-point weights."""


# --- getting a checkpoint -----------------------------------------------------------------------------------


class NotForExport(CheckpointError):
    """The path or repository holds something else than a checkpoint of a diffusion language model."""


class InvalidAdapter(CheckpointError):
    """A folder is no LoRA adapter in PEFT's layout, asks for more than is supported, or belongs to another
    model.
    """


class LinkLeavesFolder(CheckpointError):
    """A file that bundles take is a link to one outside the checkpoint."""


class TokenizerFilesMissing(CheckpointError):
    """The checkpoint has no tokenizer, or one in a form that edgekit cannot convert."""
