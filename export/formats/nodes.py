"""Nodes of exported programs, as formats translate them whose own graphs are built by calls."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from edgekit.export.errors import ExportError
from edgekit.export.programs import call_arguments

aten = torch.ops.aten
#: Arguments of a node by name, defaults included. Values are the format's own.
Arguments = dict[str, Any]
#: What a node becomes: arguments -> value or values.
Nodes = Mapping[Any, Callable[[Arguments], Any]]
#: Nodes that only give another shape, which is taken from what they make.
RESHAPES = {
    aten.view.default, aten.view_as.default, aten.reshape.default, aten.unflatten.int,
    aten.flatten.using_ints, aten.unsqueeze.default,
}  # fmt: skip


class Refused(Exception):
    """A node that has no form in a format; says why."""


class NodeTranslator(ABC):
    """Says nodes in a format's words. `NAME` is the format's, `SYSTEM` what it is for."""

    NAME: str
    SYSTEM: str
    NODES: Nodes

    @abstractmethod
    def _reshaped(self, value: Any, shape: Sequence[Any]) -> Any:
        """The value in a shape, of numbers or sizes that vary. Raises Refused."""

    def _extras(self, node: Node) -> Arguments:
        """Arguments that a node gets in addition to its own."""
        return {}

    def _computed(self, program: str, node: Node, known: Mapping[Node, Any]) -> Any:
        """Translate a call, given the values of the nodes before it; None where it makes no array.

        Raises:
            ExportError: the node has no form in the format.
        """
        if not makes_array(node):
            return None
        if node.target is operator.getitem:
            return known[node.args[0]][node.args[1]]  # type: ignore[index]
        try:
            if node.target in RESHAPES:
                return self._reshaped(known[node.args[0]], list(node.meta["val"].shape))  # type: ignore[index]
            if node.target not in self.NODES:
                raise Refused(f"has no form in {self.SYSTEM}")
            arguments = {k: map_arg(v, lambda n: known.get(n)) for k, v in call_arguments(node).items()}
            return self.NODES[node.target](arguments | self._extras(node))
        except Refused as why:
            raise ExportError(
                f"program {program}: node {node.name} ({node.target}) {why}; format {self.NAME} cannot "
                "express this model"
            ) from None


def makes_array(node: Node) -> bool:
    """Whether a node makes an array or several; sizes and checks of the tracer make none."""
    return isinstance(node.meta.get("val"), torch.Tensor | list | tuple)


def same_type(a: Arguments) -> Any:
    """`aten.to.dtype`: float32 stands for the type that a program computes in."""
    if a["dtype"] != torch.float32:
        raise Refused(f"converts to {a['dtype']}; float32 alone has a form")
    return a["self"]
