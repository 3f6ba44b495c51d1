"""The keys of a config.json: what each family reads, what values of it are supported, and what its absence or
null means in the model's own class. Everything is checked before anything is built from it.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edgekit.export.errors import UnsupportedModel
from edgekit.flashload.names import nearest

FILE = "config.json"
GENERATION_FILE = "generation_config.json"

#: Far beyond any model: what is built from a config stays small, and what is computed from it a length.
MOST_LAYERS, MOST_EXPERTS = 1024, 4096
MOST_EXPERTS_IN_ALL = 1 << 15
MOST_WIDTH, MOST_TOKENS, MOST_POSITIONS = 1 << 20, 1 << 24, 1 << 30
MOST_NESTING = 32
_NAMES_SHOWN = 5
#: Unknown keys that are compared with a missing one, and how like another a key must be to be meant.
_KEYS_COMPARED, _LIKE = 100, 0.8


class _Refused:
    """As a default: the model's own class has none that works. As the meaning of null: it takes no null."""


REFUSED = _Refused()


@dataclass(frozen=True)
class Kind:
    """The values that a key may have. `expected` says it to the user, after "NAME is VALUE; "."""

    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value


def integer(low: int = 1, high: int = MOST_WIDTH) -> Kind:
    """An integer from `low` to `high`; neither true nor 64.0 is one."""
    return Kind(f"expected an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def number(low: float, high: float) -> Kind:
    """A finite number from `low` to `high`, read as float."""

    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and low <= value <= high  # NaN is in no range

    return Kind(f"expected a number from {low:g} to {high:g}", accepts, float)


def only(*values: Any) -> Kind:
    """One of `values`; 1 and 1.0 are the same, 1 and true are not."""
    named = " or ".join("null" if v is None else repr(v) for v in values)
    verb = "is" if len(values) == 1 else "are"

    def accepts(value: Any) -> bool:
        return any(isinstance(value, bool) == isinstance(v, bool) and value == v for v in values)

    return Kind(f"only {named} {verb} supported", accepts)


FLAG = Kind("expected true or false", lambda v: isinstance(v, bool))
TABLE = Kind("expected an object", lambda v: isinstance(v, dict))
STRINGS = Kind(
    "expected a list of strings", lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v)
)
RMS_EPS = number(1e-30, 1.0)
ROPE_THETA = number(1e-3, 1e15)


def _ids(value: Any) -> bool:
    listed = value if isinstance(value, list) else [value]
    return all(type(v) is int and -1 <= v < MOST_TOKENS for v in listed)


#: A token id, or several; configs on the hub write -1 for none.
TOKEN_IDS = Kind(
    f"expected a token id below {MOST_TOKENS}, a list of them or null", _ids, lambda v: None if v == -1 else v
)


@dataclass(frozen=True)
class Key:
    """A key that decides about the computation. `default` is what leaving it out means in the model's own
    class, `null` what null means there; both are checked as a value that is written is.
    """

    kind: Kind
    default: Any = REFUSED
    null: Any = REFUSED


#: Token ids are no part of the network; what a config leaves out, the tokenizer or the sampler knows.
TOKEN = Key(TOKEN_IDS, None, None)

#: Keys of transformers' base class, and of training, that no computation here depends on.
NO_EFFECT = frozenset(
    {
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
        "add_cross_attention", "architectures", "attention_dropout", "attn_implementation", "auto_map",
        "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
        "dtype", "eos_token_id", "experts_implementation", "finetuning_task", "id2label",
        "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "mask_token_id", "model_type",
        "name_or_path", "num_labels", "output_attentions", "output_hidden_states", "pad_token_id", "prefix",
        "problem_type", "pruned_heads", "return_dict", "sep_token_id", "task_specific_params",
        "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unk_token_id",
        "use_bfloat16", "use_cache",
    }
)  # fmt: skip

#: Keys by which a checkpoint says that its weights are quantized: transformers', and those of MLX.
_QUANTIZED = ("quantization_config", "compression_config", "quantization")


def shown(value: Any) -> str:
    """A value of a config for a message, of bounded length."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    short.maxlevel = 2
    text = "null" if value is None else short.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


@dataclass(frozen=True)
class Schema:
    """The keys of one object in config.json, or in another `file`. `prefix` is where it is, such as
    "text_config."; `no_effect` are known keys that change nothing here.
    """

    keys: Mapping[str, Key]
    no_effect: frozenset[str] = NO_EFFECT
    prefix: str = ""
    file: str = FILE

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every key, defaults filled in.

        Raises:
            UnsupportedModel: a key that is missing and needed, of the wrong type, out of range, or not
                supported.
        """
        return {name: self._value(config, name, key) for name, key in self.keys.items()}

    def _value(self, config: Mapping[str, Any], name: str, key: Key) -> Any:
        where = f"{self.file}: {self.prefix}{name}"
        if name not in config and isinstance(key.default, _Refused):
            near = nearest(name, self.unknown(config)[:_KEYS_COMPARED], _LIKE)
            hint = f" (there is {shown(near)})" if near else ""
            raise UnsupportedModel(
                f"{where} is missing{hint}; there is no safe default, write the checkpoint's value"
            )
        value = config.get(name, key.default)
        found = f"is {shown(value)}" if name in config else f"is left out, which means {shown(value)}"
        if value is None and name in config:
            if isinstance(key.null, _Refused):
                raise UnsupportedModel(f"{where} is null; {key.kind.expected}")
            value = key.null
            found = "is null" if value is None else f"is null, which means {shown(value)}"
        if value is None:
            return None
        if not key.kind.accepts(value):
            raise UnsupportedModel(f"{where} {found}; {key.kind.expected}")
        return key.kind.convert(value)

    def unknown(self, config: Mapping[str, Any]) -> list[str]:
        """Keys that the family does not know, in the order of the file."""
        return [key for key in config if key not in self.keys and key not in self.no_effect]

    def notes(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Notes for the user about keys that are not known."""
        found = self.unknown(config)
        if not found:
            return ()
        named = []
        for key in found[:_NAMES_SHOWN]:
            close = nearest(key, self.keys, _LIKE)
            hint = f" (did you mean {close}?)" if close else ""
            named.append(f"{self.prefix}{shown(key)[1:-1]}{hint}")
        more = f" and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else ""
        return (f"{self.file}: not known to this family, without effect here: {', '.join(named)}{more}",)


def check_file(value: Mapping[str, Any], file: str = FILE) -> None:
    """Refuse what no manifest can hold, and weights that are quantized already.

    Raises:
        UnsupportedModel: numbers that are not finite or too large, text that is not Unicode, deep nesting, or
            a quantized checkpoint.
    """
    _check_storable(value, file, ())
    for where, part in (("", value), ("text_config.", value.get("text_config"))):
        for name in _QUANTIZED:
            if isinstance(part, dict) and part.get(name) not in (None, {}):
                entry = part[name]
                method = entry.get("quant_method") if isinstance(entry, dict) else None
                by = f" ({shown(method)})" if method is not None else ""
                raise UnsupportedModel(
                    f"{file}: {where}{name}: the weights are quantized already{by}, edgekit quantizes from "
                    "floating point; give the original checkpoint"
                )


def _check_storable(value: Any, file: str, path: tuple[str, ...]) -> None:
    def refuse(what: str) -> UnsupportedModel:
        return UnsupportedModel(f"{file}: {shown('.'.join(path))} {what}")

    if len(path) > MOST_NESTING:
        raise refuse(f"is nested in more than {MOST_NESTING} objects and lists")
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(f"is {value}, which JSON has no number for")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise refuse(f"is {shown(value)}, an integer of more than 64 bits")
    if isinstance(value, str):
        _check_text(value, refuse)
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        if isinstance(key, str):
            _check_text(key, refuse)
        _check_storable(item, file, (*path, str(key)))


def _check_text(text: str, refuse: Callable[[str], UnsupportedModel]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refuse("has half a surrogate pair, which is no Unicode text") from None


def divided(count: int, among: int, what: str, of: str) -> int:
    """count / among. Raises UnsupportedModel where that leaves a rest, naming `what` over `of`."""
    if count % among:
        raise UnsupportedModel(f"{FILE}: {what} {count} and {of} {among} do not divide")
    return count // among


def check_heads(
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    where: str = "",
    keys: tuple[str, str] = ("num_attention_heads", "num_key_value_heads"),
) -> None:
    """Refuse attention heads that cannot share KV heads, or whose size has no halves to rotate."""
    if num_heads % kv_heads:
        raise UnsupportedModel(f"{FILE}: {where}{keys[0]} {num_heads} and {keys[1]} {kv_heads} do not divide")
    if head_dim % 2:
        raise UnsupportedModel(f"{FILE}: {where}head_dim is {head_dim}; rotation needs an even number")


def check_experts(layers: int, experts: int, top_k: int, key: str, where: str = "") -> None:
    """Refuse more experts for a token than there are, and more in all than a model can have."""
    if top_k > experts:
        raise UnsupportedModel(f"{FILE}: {where}{key} is {top_k} of num_experts {experts}: not possible")
    if layers * experts > MOST_EXPERTS_IN_ALL:
        raise UnsupportedModel(
            f"{FILE}: {where}num_hidden_layers {layers} with num_experts {experts}; "
            f"up to {MOST_EXPERTS_IN_ALL} experts in all are supported"
        )


#: `rope_scaling` and, since transformers 5, `rope_parameters` of families that rotate plainly.
PLAIN_ROPE = {"rope_scaling": Key(TABLE, None, None), "rope_parameters": Key(TABLE, None, None)}
_PLAIN = {
    "rope_type": Key(only("default"), "default"),
    "rope_theta": Key(ROPE_THETA, None),
    "partial_rotary_factor": Key(only(1), 1),
}
_PARTIAL = _PLAIN | {"partial_rotary_factor": Key(number(0, 1), None)}


def read_needing_theta(schema: Schema, config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a schema with `PLAIN_ROPE` whose `rope_theta` has no default: it may stand in
    `rope_parameters` instead of the top, and is 1 there then. Raises UnsupportedModel as `Schema.read`.
    """
    rope = config.get("rope_parameters")
    inside = isinstance(rope, dict) and "rope_theta" in rope
    return schema.read({"rope_theta": 1.0, **config} if inside else config)


def plain_rope_theta(values: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """`rope_theta` of a family that has `PLAIN_ROPE` among its keys; `values` are those of `config`. A table
    may hold it instead.

    Raises:
        UnsupportedModel: another way to rotate, or several values: classes differ in which they read.
    """
    return _of_tables("rope_theta", _PLAIN, values, config)


def partial_rope(values: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[float, float]:
    """`rope_theta` and `partial_rotary_factor`, each as `plain_rope_theta` reads the first. Raises as it."""
    theta, factor = (
        _of_tables(key, _PARTIAL, values, config) for key in ("rope_theta", "partial_rotary_factor")
    )
    return theta, factor


def _of_tables(
    key: str, known: Mapping[str, Key], values: Mapping[str, Any], config: Mapping[str, Any]
) -> float:
    """What a config states for `key`, at its top or in a table of rotation."""
    stated = {} if config.get(key) is None else {key: float(values[key])}
    for name in ("rope_scaling", "rope_parameters"):
        table = values[name]
        if table:
            inside = Schema(known, frozenset({"type"}), f"{name}.").read(with_rope_type(table))
            if nested := next((k for k, value in table.items() if isinstance(value, dict)), None):
                raise UnsupportedModel(
                    f"{FILE}: {name}.{shown(nested)[1:-1]} is an object; only one table for all layers is "
                    "supported"
                )
            if inside[key] is not None:
                stated[f"{name}.{key}"] = float(inside[key])
    if len(set(stated.values())) > 1:
        listed = ", ".join(f"{name} is {value:g}" for name, value in stated.items())
        raise UnsupportedModel(f"{FILE}: {listed}; keep the one that the model was trained with")
    return next(iter(stated.values()), float(values[key]))


def with_rope_type(table: Mapping[str, Any]) -> dict[str, Any]:
    """Rope parameters with `rope_type`, which older files call `type`."""
    return {"rope_type": table["type"], **table} if "type" in table else dict(table)


def token_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The token ids that a config states, for the sampler."""
    names = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
    return {name: values[name] for name in names if values.get(name) is not None}
