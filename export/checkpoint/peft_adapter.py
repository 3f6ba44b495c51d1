"""A LoRA adapter in PEFT's layout: a folder with adapter_config.json and adapter_model.safetensors.

Tensors of the file are named `base_model.model.<module>.lora_A.weight` [r, in] and `.lora_B.weight` [out, r];
some releases put the adapter's name before `weight`. They are added to the tensor `<module>.weight` of the
checkpoint, times lora_alpha / r (lora_alpha / sqrt(r) with use_rslora). What a file says beyond that, such as
other ways to compute, is refused: leaving it out would give other results than PEFT gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekit.export.checkpoint.errors import InvalidAdapter
from edgekit.export.checkpoint.safetensors_dir import FLOAT_DTYPES, read_float32
from edgekit.export.checkpoint.safetensors_file import SafetensorsFile, TensorEntry, open_safetensors
from edgekit.export.checkpoint.text_files import is_there, read_config
from edgekit.export.errors import UnsupportedModel
from edgekit.export.models import config as c
from edgekit.export.models.config import Key, integer, number, only
from edgekit.flashload.errors import cut

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_TENSOR = re.compile(r"base_model\.model\.(.{1,200})\.lora_([AB])(?:\.([^.]+))?\.weight", re.ASCII)
#: PEFT's names for other trained parts, and what to call them.
_OTHER_PARTS = (
    ("lora_magnitude_vector", "magnitudes of DoRA"),
    ("lora_embedding_", "an adapter of an embedding"),
    (".modules_to_save.", "a module that was trained whole"),
    (".bias", "a trained bias"),
    ("trainable_tokens_", "trained tokens"),
)
_MOST_RANK = 1 << 16
_MOST_PATTERN = 500
#: Patterns times matrices that they are compared with; fewer where patterns repeat something.
_MOST_COMPARED, _MOST_REPEATED = 1 << 22, 1 << 14
_REPEATS = re.compile(r"[*+?{]")
_EMPTY = c.Kind(
    "it changes what is computed, which is not supported", lambda v: v is False or v in ([], {}, 0, "")
)
_NOTHING = Key(_EMPTY, None, None)
_ALPHA = number(-1e9, 1e9)
_NUMBERS = c.Kind(
    "expected an object of numbers from -1e+09 to 1e+09",
    lambda v: isinstance(v, dict) and all(map(_ALPHA.accepts, v.values())),
)
_NAMES = c.Kind("expected a list of names or a pattern", lambda v: isinstance(v, str) or c.STRINGS.accepts(v))
_LAYERS = c.Kind(
    "expected a layer number, or a list of them",
    lambda v: all(type(n) is int for n in (v if isinstance(v, list) else [v])),
    lambda v: v if isinstance(v, list) else [v],
)
#: How the matrices were initialised; what is not among them has also changed the weights beside them.
_INITIAL = only(True, False, "gaussian", "eva", "orthogonal")

#: Defaults are those of PEFT's LoraConfig.
SCHEMA = c.Schema(
    {
        "peft_type": Key(only("LORA")),
        "r": Key(integer(high=_MOST_RANK), 8),
        "lora_alpha": Key(_ALPHA, 8),
        "use_rslora": Key(c.FLAG, False, False),
        "rank_pattern": Key(_NUMBERS, {}, {}),
        "alpha_pattern": Key(_NUMBERS, {}, {}),
        "target_modules": Key(_NAMES, None, None),
        "exclude_modules": Key(_NAMES, None, None),
        "layers_to_transform": Key(_LAYERS, None, None),
        "layers_pattern": Key(_NAMES, None, None),
        "init_lora_weights": Key(_INITIAL, True, True),
        "bias": Key(only("none"), "none", "none"),
        "use_dora": _NOTHING,
        "modules_to_save": _NOTHING,
        "lora_bias": _NOTHING,
    },
    frozenset(
        {
            "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
            "fan_in_fan_out",  # of GPT-2's Conv1D alone, which no family has
            "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config",
            "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
            "runtime_config", "task_type",
        }
    ),
    file=ADAPTER_CONFIG,
)  # fmt: skip


@dataclass(frozen=True)
class LowRank:
    """What is added to a stored matrix [out, in]: `scale * up @ down`."""

    down: TensorEntry  # [rank, in]
    up: TensorEntry  # [out, rank]
    scale: float

    @property
    def rank(self) -> int:
        """Columns of `up`, rows of `down`."""
        return self.down.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that it is added to."""
        return self.up.shape[0], self.down.shape[1]


class Adapter:
    """An adapter of one folder. `matrices` are by the name of the stored tensor that each is added to. Of its
    weights the header alone is read before `down` and `up` are asked for.
    """

    def __init__(
        self, path: Path, config: dict[str, Any], file: SafetensorsFile, matrices: Mapping[str, LowRank]
    ) -> None:
        self.path, self.config, self.matrices = path, config, matrices
        self._file = file

    @classmethod
    def open(cls, path: str | Path) -> Adapter:
        """Open the adapter in folder `path`.

        Raises:
            InvalidAdapter: what is no adapter of this kind, or asks for more than is supported.
            CheckpointError: the weights cannot be read, or are malformed.
        """
        path = Path(path)
        config = read_config(path, ADAPTER_CONFIG, "a PEFT adapter", InvalidAdapter, InvalidAdapter)
        settings = _settings(path / ADAPTER_CONFIG, config)
        file = _open_weights(path)
        return cls(path, config, file, _matrices(path, file, settings))

    @property
    def rank(self) -> int:
        """The largest rank of its matrices."""
        return max(each.rank for each in self.matrices.values())

    @property
    def stamp(self) -> tuple[int, int]:
        """Size in bytes and time of change (ns) of its weights."""
        return self._file.identity[1:]

    def down(self, matrix: str) -> np.ndarray:
        """[rank, in], float32. Raises CheckpointError."""
        return self._read(self.matrices[matrix].down)

    def up(self, matrix: str) -> np.ndarray:
        """[out, rank] with the scale in it, float32. Raises CheckpointError."""
        own = self.matrices[matrix]
        with np.errstate(over="ignore"):
            values = self._read(own.up) * np.float32(own.scale)
        return self.checked(values, matrix)

    def checked(self, values: np.ndarray, matrix: str) -> np.ndarray:
        """Values that were made with `matrix`. Raises InvalidAdapter for those beyond float32."""
        if not np.isfinite(values).all():
            raise InvalidAdapter(
                f"{self.path}: {cut(matrix)} is beyond float32 with the adapter, whose scale is "
                f"{self.matrices[matrix].scale:g} there: it is damaged, or {ADAPTER_CONFIG} is another one's"
            )
        return values

    def _read(self, entry: TensorEntry) -> np.ndarray:
        values = read_float32(self._file, entry, entry.shape, 0)
        if not np.isfinite(values).all():
            raise InvalidAdapter(f"{self._file.path}: tensor {cut(entry.name)} holds NaN or infinity")
        return values


def _settings(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The settings of an adapter_config.json, checked."""
    try:
        c.check_file(config, ADAPTER_CONFIG)
        found = SCHEMA.read(config)
    except UnsupportedModel as error:
        raise InvalidAdapter(f"{file.parent}: {error}") from None
    for key in SCHEMA.unknown(config):
        if config[key] is not None and not _EMPTY.accepts(config[key]):
            raise InvalidAdapter(
                f"{file.parent}: {ADAPTER_CONFIG}: {c.shown(key)[1:-1]} is {c.shown(config[key])}, which "
                "edgekit does not know: it may change what is computed"
            )
    return found


def _open_weights(path: Path) -> SafetensorsFile:
    weights = path / ADAPTER_WEIGHTS
    if not is_there(weights):
        pickles = sorted(p.name for p in path.glob("adapter_model*.bin"))
        if pickles:
            raise InvalidAdapter(
                f"{path}: has only pickle weights ({pickles[0]}), which run code when loaded; convert them "
                f"to {ADAPTER_WEIGHTS} with the save_pretrained of peft"
            )
        raise InvalidAdapter(f"{path}: has no {ADAPTER_WEIGHTS}, where PEFT keeps an adapter's weights")
    return open_safetensors(weights)


def _matrices(path: Path, file: SafetensorsFile, settings: dict[str, Any]) -> dict[str, LowRank]:
    found: dict[str, dict[str, TensorEntry]] = {}
    named: set[str | None] = set()
    for name, entry in file.entries.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            what = next((said for part, said in _OTHER_PARTS if part in name), "no matrix of LoRA")
            raise InvalidAdapter(
                f"{path}: tensor {cut(name)} is {what}, which is not supported; known: "
                "base_model.model.<module>.lora_A.weight and .lora_B.weight"
            )
        module, which, adapter = match.groups()
        named.add(adapter)
        if which in found.setdefault(module, {}):
            raise InvalidAdapter(f"{path}: tensor {cut(name)} is there under two names")
        found[module][which] = entry
    if not found:
        raise InvalidAdapter(f"{path / ADAPTER_WEIGHTS}: holds no tensors")
    if len(named) > 1:
        raise InvalidAdapter(
            f"{path / ADAPTER_WEIGHTS}: holds several adapters ({', '.join(sorted(map(cut, named)))}); "
            "save one"
        )
    scales = _Scales(path, settings, len(found))
    return {
        f"{module}.weight": _low_rank(path, module, parts, settings, scales)
        for module, parts in found.items()
    }


def _low_rank(
    path: Path, module: str, parts: dict[str, TensorEntry], settings: dict[str, Any], scales: _Scales
) -> LowRank:
    where = f"{path}: {cut(module)}"
    if len(parts) == 1:
        here, lacks = ("A", "B") if "A" in parts else ("B", "A")
        raise InvalidAdapter(f"{where} has lora_{here} without lora_{lacks}: an adapter is both")
    if not _targeted(module, settings):
        raise InvalidAdapter(
            f"{where} is none of the modules that {ADAPTER_CONFIG} names: PEFT would not load its matrices"
        )
    down, up = parts["A"], parts["B"]
    for entry in (down, up):
        if entry.dtype not in FLOAT_DTYPES:
            raise InvalidAdapter(
                f"{path}: tensor {cut(entry.name)} is stored as {cut(entry.dtype)}, not as one of "
                f"{', '.join(FLOAT_DTYPES)}"
            )
    rank, scale = scales.of(module)
    if len(down.shape) != 2 or len(up.shape) != 2 or (down.shape[0], up.shape[1]) != (rank, rank):
        raise InvalidAdapter(
            f"{where} has matrices {cut(list(down.shape))} and {cut(list(up.shape))}; with the rank {rank} "
            f"of {ADAPTER_CONFIG} they are [{rank}, in] and [out, {rank}]"
        )
    return LowRank(down, up, scale)


def _targeted(module: str, settings: dict[str, Any]) -> bool:
    """Whether PEFT adapts a module, as its `check_target_module_exists` has it; a pattern is taken to fit."""
    targets, excluded, layers = (
        settings[key] for key in ("target_modules", "exclude_modules", "layers_to_transform")
    )

    def among(names: list[str]) -> bool:
        return any(module == name or module.endswith(f".{name}") for name in names)

    if isinstance(excluded, list) and among(excluded):
        return False
    if not isinstance(targets, list):
        return True
    if settings["layers_pattern"]:
        return among(targets)
    layer = re.match(r".*?\.[^.]*\.(\d{1,9})\.", module)
    return among(targets) and (not layers or (layer is not None and int(layer[1]) in layers))


class _Scales:
    """Ranks and scales by module: the first pattern that fits one decides, as in PEFT's `get_pattern_key`."""

    def __init__(self, path: Path, settings: dict[str, Any], modules: int) -> None:
        self._settings = settings
        self._patterns = {}
        for key in ("rank_pattern", "alpha_pattern"):
            own = settings[key]
            most = _MOST_REPEATED if any(_REPEATS.search(text) for text in own) else _MOST_COMPARED
            if len(own) * modules > most:
                raise InvalidAdapter(
                    f"{path}: {ADAPTER_CONFIG}: {key} has {len(own)} entries, which is too many"
                )
            self._patterns[key] = [(_pattern(path, key, text), value) for text, value in own.items()]

    def of(self, module: str) -> tuple[int, float]:
        """Rank and scale."""
        rank = int(self._first("rank_pattern", module, self._settings["r"]))
        alpha = self._first("alpha_pattern", module, self._settings["lora_alpha"])
        return rank, alpha / (math.sqrt(max(rank, 1)) if self._settings["use_rslora"] else max(rank, 1))

    def _first(self, key: str, module: str, default: float) -> float:
        return next((value for pattern, value in self._patterns[key] if pattern.match(module)), default)


def _pattern(path: Path, key: str, text: str) -> re.Pattern[str]:
    """A pattern of a file from anywhere: of a form whose matching takes no time to speak of."""
    plain = re.sub(r"\\[.\-_dw]", "x", text.replace("(?:", "("))
    repeated = len(_REPEATS.findall(plain))
    if len(text) <= _MOST_PATTERN and repeated <= 1 and not re.search(r"\\|\)[*+?{]|\(\?", plain):
        try:
            return re.compile(rf"(.*\.)?({text})$")
        except (re.error, OverflowError, RecursionError):
            pass
    raise InvalidAdapter(
        f"{path}: {ADAPTER_CONFIG}: {key} has the pattern {c.shown(text)}; known are names of modules, and "
        "patterns with one repetition at most"
    )
