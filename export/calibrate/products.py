"""Watches the products of a model's matrices while it runs in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Told the name of a matrix, what it is multiplied with [..., K], and the product [..., N] without a bias.
Seen = Callable[[str, Tensor, Tensor], None]


class WatchedProducts(TorchFunctionMode):
    """While it is entered, `seen` is told of every product of a weight of `weights`, which are float and
    found again by being the same tensor. Products of what is computed, as attention's, are not among them.
    """

    def __init__(self, weights: Mapping[str, Tensor], seen: Seen) -> None:
        super().__init__()
        self._weights, self._seen = dict(weights), seen
        self._names = {id(value): name for name, value in self._weights.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is not F.linear or id(args[1]) not in self._names:
            return func(*args, **given)
        bias = args[2] if len(args) > 2 else given.get("bias")
        product = func(args[0], args[1])
        self._seen(self._names[id(args[1])], args[0], product)
        return product if bias is None else product + bias
