"""The Jinja environment of chat templates: bounded in time and memory.

Jinja's own sandbox keeps a template away from Python's internals; it does not keep it from looping for ever
or from building gigabytes. Here an allowance meets every way in which a template can repeat work or make a
value larger than its parts: the compiled template calls the environment where a loop turns, a text is written
and a container or joined text is made; operators, calls and filters are intercepted. What costs more than
its text is long (regular expressions that go back, repeated copies) is left out or paid for, so that the
clock, which is asked between steps, is asked often enough.
"""

from __future__ import annotations

import functools
import json
import re
import string
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Cycler, Joiner, Namespace

#: Seconds that one rendering may take, checked between its steps.
MOST_SECONDS = 3.0
#: Characters that one rendering may create, a container's entry counting as `_ENTRY` of them; for each
#: character of the conversation it may create more.
MOST_CREATED, CREATED_PER_CHARACTER = 8 << 20, 64
#: Size of one value, nested values included as often as they occur; again with more for a long conversation.
MOST_VALUE, VALUE_PER_CHARACTER = 2 << 20, 4
#: Nodes of a template's syntax, and how deep they nest.
MOST_NODES, DEEPEST_SYNTAX = 20_000, 200
_ENTRY = 16
_TURN = 8
_DEEPEST = 100
_LONGEST_FORMAT = 16 << 10
_MOST_BITS = 1 << 16

# Their cost grows with more than the length of the text, and no published template needs them.
_UNBOUNDED_FILTERS = ("urlize", "wordwrap", "striptags", "pprint", "xmlattr")
_UNBOUNDED_GLOBALS = ("lipsum",)
# These go through the whole of what they are given: a generator is made a list that can be measured.
_CONSUMING_FILTERS = frozenset(
    ("join", "list", "sort", "sum", "min", "max", "reverse", "groupby", "batch", "slice", "unique")
)
_STR_METHODS = frozenset((
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format",
    "format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower",
    "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip",
    "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip",
    "split", "splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper", "zfill",
))  # fmt: skip
_METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _STR_METHODS),
    (dict, frozenset(("get", "items", "keys", "values", "copy"))),
    ((list, tuple), frozenset(("index", "count", "copy"))),
    ((int, float), frozenset(("bit_length", "is_integer", "conjugate", "as_integer_ratio"))),
    (bytes, frozenset(("decode", "hex"))),
    (LoopContext, frozenset(("cycle", "changed"))),
    (Cycler, frozenset(("next", "reset"))),
)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")


class OutOfBounds(jinja2.TemplateError):
    """The template computes more than a chat template needs."""


class Allowance:
    """The allowance of one rendering: what it may still create, and until when it may run."""

    def __init__(self, characters: int) -> None:
        """`characters` is the length of the conversation."""
        self.left = MOST_CREATED + CREATED_PER_CHARACTER * characters
        self.most_value = MOST_VALUE + VALUE_PER_CHARACTER * characters
        self.until = time.monotonic() + MOST_SECONDS

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise OutOfBounds("it builds more text than a chat template needs")
        if time.monotonic() > self.until:
            raise OutOfBounds(f"it runs for more than {MOST_SECONDS:g} s")

    def make(self, size: int) -> None:
        """Before one value of `size` characters is made."""
        if size > self.most_value:
            raise OutOfBounds("it builds a larger value than a chat template needs")
        self.spend(size)

    def weigh(self, value: Any) -> int:
        """Size of `value` in characters as its text would have them, at least."""
        if type(value) is str:
            return len(value)
        total, stack = 0, [(value, 0)]
        while stack:
            item, depth = stack.pop()
            if isinstance(item, (str, bytes)):
                total += len(item)
                continue
            total += _ENTRY
            if isinstance(item, int):
                total += item.bit_length() // 3
                continue
            if isinstance(item, Namespace):
                item = object.__getattribute__(item, "_Namespace__attrs")
            if isinstance(item, dict):
                inside: Any = (*item.keys(), *item.values())
            elif isinstance(item, (list, tuple, set, frozenset, *_VIEWS)):
                inside = item
            else:
                continue
            if depth > _DEEPEST or total + _ENTRY * len(inside) > self.most_value:
                raise OutOfBounds("it builds a larger value than a chat template needs")
            stack.extend((part, depth + 1) for part in inside)
        if total > self.most_value:
            raise OutOfBounds("it builds a larger value than a chat template needs")
        return total


_allowance: ContextVar[Allowance] = ContextVar("edgekit_template_allowance")


@contextmanager
def allowance(characters: int) -> Iterator[None]:
    """Renderings inside may compute what a conversation of `characters` needs."""
    token = _allowance.set(Allowance(characters))
    try:
        yield
    finally:
        _allowance.reset(token)


class _Generator(CodeGenerator):
    """Writes calls to the environment wherever a template repeats something or makes a value."""

    def _make_finalize(self) -> Any:
        # No function for constants: nothing is computed while a template is compiled.
        return self._FinalizeInfo(None, "environment.finalize(")

    def _output_const_repr(self, group: Any) -> str:
        return f"environment.constant({super()._output_const_repr(group)})"

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        turn = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None).set_lineno(node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn).set_lineno(node.lineno))
        if node.test is not None:
            node.test = nodes.And(turn, node.test).set_lineno(node.lineno)
        super().visit_For(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}()")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        markup = "True" if frame.eval_ctx.autoescape else "False"
        self.write(
            f"environment.joined({'context.eval_ctx.autoescape' if frame.eval_ctx.volatile else markup}, ("
        )
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        loaded = node.ctx == "load" and not all(isinstance(item, nodes.Const) for item in node.items)
        self._made(super().visit_Tuple, node, frame, loaded)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(super().visit_List, node, frame, True)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(super().visit_Dict, node, frame, True)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        self._made(super().visit_Getitem, node, frame, isinstance(node.arg, nodes.Slice))

    def _made(
        self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame, wrapped: bool
    ) -> None:
        self.write("environment.made(" if wrapped else "")
        visit(node, frame)
        self.write(")" if wrapped else "")


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; it renders as its contents."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment that published templates are written for, within an `allowance`.

    Whitespace settings, globals and filters are those that transformers documents for chat templates.
    """

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
            optimized=False,
            finalize=self._printed,
        )
        for name in _UNBOUNDED_GLOBALS:
            del self.globals[name]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._functions = tuple(self.globals.values())
        self.filters["tojson"] = _tojson
        self.filters = {
            name: _bounded_filter(name, function)
            for name, function in self.filters.items()
            if name not in _UNBOUNDED_FILTERS
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        count = 0
        level: list[nodes.Node] = [template]
        for _ in range(DEEPEST_SYNTAX):
            level = [child for node in level for child in node.iter_child_nodes()]
            count += len(level)
            if not level and count <= MOST_NODES:
                return template
        raise jinja2.TemplateSyntaxError("is larger or nests deeper than any chat template", 1)

    # --- called by the compiled template ---

    def turn(self) -> bool:
        """A loop turns."""
        _allowance.get().spend(_TURN)
        return True

    def constant(self, text: str) -> str:
        """Text of the template itself is written."""
        _allowance.get().spend(len(text))
        return text

    def _printed(self, value: Any) -> Any:
        allowed = _allowance.get()
        allowed.make(allowed.weigh(value))
        return value

    def joined(self, markup: bool, parts: Sequence[Any]) -> str:
        """The `~` operator."""
        allowed = _allowance.get()
        allowed.make(sum(map(allowed.weigh, parts)))
        return markup_join(parts) if markup else str_join(parts)

    def made(self, value: Any) -> Any:
        """A container or a slice has been made from parts that were there."""
        allowed = _allowance.get()
        allowed.weigh(value)
        if isinstance(value, (str, bytes)):
            allowed.spend(len(value))
        elif isinstance(value, (list, tuple, dict)):
            allowed.spend(_ENTRY * (1 + len(value)))
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        allowed = _allowance.get()
        if operator == "%":
            if isinstance(left, (str, bytes)):
                _check_percent(allowed, left, right)
        elif operator == "+":
            if not isinstance(left, (int, float)):
                allowed.make(_extent(left) + _extent(right))
                return self.made(left + right) if isinstance(left, (list, tuple)) else left + right
        elif isinstance(left, int) and isinstance(right, int):
            bits = (
                left.bit_length() * max(right, 1)
                if operator == "**"
                else left.bit_length() + right.bit_length()
            )
            if bits > _MOST_BITS:
                raise OutOfBounds("it computes a larger number than a chat template needs")
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(many, (str, bytes, list, tuple)):
                    allowed.make((allowed.weigh(many) + 1) * max(times, 0))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        # Names as in the class above: keywords of the template's own must not meet them.
        allowed = _allowance.get()
        allowed.spend(_TURN + _ENTRY * (len(args) + len(kwargs)))
        method = getattr(__obj, "__wrapped__", __obj) if isinstance(__obj, types.FunctionType) else __obj
        owner = getattr(method, "__self__", None) if isinstance(method, _BOUND) else None
        if owner is not None:
            name = method.__name__
            if not any(isinstance(owner, kind) and name in names for kind, names in _METHODS):
                raise SecurityError(f"{type(owner).__name__}.{name} is not for chat templates")
            if isinstance(owner, str):
                args = _check_str_method(allowed, owner, name, args, kwargs)
            result = super().call(__context, __obj, *args, **kwargs)
            if isinstance(owner, (str, bytes)):
                allowed.spend(allowed.weigh(result))
            return __self.made(result)
        if not isinstance(__obj, (Macro, BlockReference, LoopContext, Joiner, Undefined)) and not any(
            __obj is function for function in __self._functions
        ):
            raise SecurityError(f"{type(__obj).__name__} is not for chat templates to call")
        return __self.made(super().call(__context, __obj, *args, **kwargs))


_BOUND = (types.MethodType, types.BuiltinMethodType)


def _extent(value: Any) -> int:
    """Characters, or entries counted as characters, of the outermost level alone."""
    if isinstance(value, (str, bytes)):
        return len(value)
    return _ENTRY * len(value) if isinstance(value, (list, tuple)) else _ENTRY


def _check_str_method(
    allowed: Allowance, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Account for what str method `name` will build; returns the arguments to call it with."""
    first = args[0] if args else None
    if name in ("center", "ljust", "rjust", "zfill"):
        if isinstance(first, int):
            allowed.make(max(first, 0))
    elif name == "expandtabs":
        size = kwargs.get("tabsize", 8 if first is None else first)
        if isinstance(size, int):
            allowed.make(len(text) + text.count("\t") * max(size, 0))
    elif name == "replace":
        if len(args) > 1 and isinstance(first, str) and isinstance(args[1], str):
            allowed.make(len(text) + text.count(first) * len(args[1]))
    elif name == "join":
        if args:
            parts = _listed(allowed, first)
            allowed.make(allowed.weigh(parts) + len(text) * len(parts))
            return (parts, *args[1:])
    elif name == "translate":
        if isinstance(first, dict):
            allowed.make(len(text) * max((_extent(v) for v in first.values()), default=1))
    elif name in ("format", "format_map"):
        _check_format(allowed, text, (args, {k: v for k, v in kwargs.items() if not k.startswith("_")}))
    elif name in ("rfind", "rindex", "rsplit", "rpartition", "strip", "lstrip", "rstrip"):
        # The one text is compared with the other at every place.
        allowed.spend(len(text) * _extent(first or "") >> 8)
    return args


def _check_percent(allowed: Allowance, text: str | bytes, values: Any) -> None:
    shown = text if isinstance(text, str) else text.decode("latin-1")
    if len(shown) > _LONGEST_FORMAT:
        raise OutOfBounds("it formats with a longer format than a chat template needs")
    fields = 0
    for match in _PERCENT.finditer(shown):
        fields += 1
        _check_widths(match[1] or "", match[2] or "")
    allowed.make(len(shown) + fields * (allowed.weigh(values) + 9999))


def _check_format(allowed: Allowance, text: str, values: Any) -> None:
    fields = 0
    for _, name, spec, _ in string.Formatter().parse(text):
        if name is not None:
            fields += 1
            _check_widths("*" if "{" in (spec or "") else "", *re.findall(r"\d+", spec or ""))
    allowed.make(len(text) + fields * (allowed.weigh(values) + 9999))


def _check_widths(*widths: str) -> None:
    if any(width == "*" or len(width) > 4 for width in widths):
        raise OutOfBounds("it formats with a larger width than a chat template needs")


def _listed(allowed: Allowance, value: Any) -> Any:
    """`value`, or if it is an iterator or a range the list of its items."""
    if isinstance(value, (str, bytes, list, tuple, dict, set, frozenset, *_VIEWS, Undefined)):
        return value
    try:
        items = iter(value)
    except TypeError:
        return value
    listed = []
    for item in items:
        allowed.spend(_ENTRY)
        listed.append(item)
    return listed


# --- filters ------------------------------------------------------------------------------------------------


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # Jinja passes a context or environment before the value to filters that are marked so.
    place = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _FILTER_CHECKS.get(name)

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        allowed = _allowance.get()
        allowed.spend(_TURN)
        if len(args) > place and name in _CONSUMING_FILTERS:
            args = (*args[:place], _listed(allowed, args[place]), *args[place + 1 :])
            # One that looks up an attribute of each, as groupby does, takes microseconds for an item.
            allowed.spend(_ENTRY * len(args[place]) if isinstance(args[place], Sized) else 0)
        size = allowed.weigh(args[place:])
        if kwargs:
            size += allowed.weigh(kwargs)
        if check is not None:
            check(allowed, size, args[place:], kwargs)
        result = function(*args, **kwargs)
        if any(result is arg for arg in args):
            return result
        if isinstance(result, str):
            allowed.make(len(result))
            return result
        return result if isinstance(result, (int, float)) else _allowed_container(allowed, result)

    return bounded


def _allowed_container(allowed: Allowance, result: Any) -> Any:
    allowed.weigh(result)
    if isinstance(result, (list, tuple, dict)):
        allowed.spend(_ENTRY * (1 + len(result)))
    return result


_Check = Callable[[Allowance, int, tuple[Any, ...], Mapping[str, Any]], None]


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _check_number(place: int, keyword: str, default: int, each: int) -> _Check:
    """The filter makes as many things of size `each` as argument `place` says."""

    def check(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        number = _argument(args, kwargs, place, keyword, default)
        if isinstance(number, int):
            allowed.make(abs(number) * each)

    return check


def _check_indent(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    width = _argument(args, kwargs, 1, "width", 4)
    width = len(width) if isinstance(width, str) else width
    if args and isinstance(args[0], str) and isinstance(width, int):
        allowed.make(len(args[0]) + (len(args[0].splitlines()) + 1) * max(width, 0))


def _check_replace(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    old, new = _argument(args, kwargs, 1, "old", ""), _argument(args, kwargs, 2, "new", "")
    text = str(args[0]) if args else ""
    allowed.make(len(text) + text.count(str(old)) * len(str(new)))


def _check_join(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    between = _argument(args, kwargs, 1, "d", "")
    if args and hasattr(args[0], "__len__"):
        allowed.make(size + len(args[0]) * allowed.weigh(between))


def _check_format_filter(
    allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    if args:
        _check_percent(allowed, str(args[0]), (args[1:], dict(kwargs)))


def _check_round(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    precision = _argument(args, kwargs, 1, "precision", 0)
    if isinstance(precision, int) and abs(precision) > 1000:
        raise OutOfBounds("it rounds to more digits than a chat template needs")


def _check_sum(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if (
        args
        and isinstance(args[0], list)
        and not isinstance(_argument(args, kwargs, 2, "start", 0), (int, float))
    ):
        # Lists are added one after the other, each sum a new list.
        allowed.spend(len(args[0]) * size >> 6)


def _check_tojson(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    indent = _argument(args, kwargs, 2, "indent", None)
    separators = _argument(args, kwargs, 3, "separators", None) or ()
    widths = [len(indent) if isinstance(indent, str) else indent or 0, *map(len, separators)]
    if any(width > 16 for width in widths):
        raise OutOfBounds("it indents JSON wider than a chat template needs")


def _check_trim(allowed: Allowance, size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    characters = _argument(args, kwargs, 1, "chars", None)
    if args and characters is not None:
        allowed.spend(allowed.weigh(args[0]) * _extent(characters) >> 8)


_FILTER_CHECKS: dict[str, _Check] = {
    "center": _check_number(1, "width", 80, 1),
    "batch": _check_number(1, "linecount", 1, _ENTRY),
    "slice": _check_number(1, "slices", 1, _ENTRY),
    "indent": _check_indent,
    "replace": _check_replace,
    "join": _check_join,
    "format": _check_format_filter,
    "round": _check_round,
    "sum": _check_sum,
    "tojson": _check_tojson,
    "trim": _check_trim,
}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a prompt must not contain.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


# --- functions ----------------------------------------------------------------------------------------------


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    _check_widths(*re.findall(r"\d+", format[:_LONGEST_FORMAT]))
    return datetime.now().strftime(format[:_LONGEST_FORMAT])
