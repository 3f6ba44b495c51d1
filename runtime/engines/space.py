"""Where the arrays of an engine lie, and when its work is done: what a plug makes of the core's addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from edgekit.flashload.core_memory import array, read_only
from edgekit.runtime.core_structs import CopyStruct, WeightsStruct
from edgekit.runtime.engines.mixture import Mixture
from edgekit.runtime.engines.stored import StoredWeights, heads
from edgekit.runtime.sampling.types import Floats

#: Canvas, text: `phase` of layer programs. All sessions share them.
_PHASES = read_only(np.array([0], np.int64)), read_only(np.array([1], np.int64))
Work = Callable[[], object]
T = TypeVar("T")
#: An expert of a layer and its weights.
Expert = tuple[int, Any]


class Space:
    """The session's memory as numpy's arrays, where all work is done at once. Engines with arrays of another
    library, or memory of their own, derive theirs from it; a session has one.

    `joined`, `looked_at`, `fetched` and `nothing_hidden` are for work, `numbers` for what follows it; all
    else is asked while a call of the core lasts.
    """

    #: Hidden states, soft embeddings, keys and values lie in memory of the engine's own, and calls return
    #: before their work is done: `allocate`, `release`, `copy` and `wait` are there.
    own_memory = False

    def __init__(self) -> None:
        self._stored = StoredWeights()

    def rows(self, address: int, shape: tuple[int, ...]) -> Any:
        """Hidden states or soft embeddings, to be read and written."""
        return array(address, shape)

    def heads(self, address: int | None, count: int, stride: int, shape: tuple[int, int]) -> Any:
        """Keys or values [1, count, *shape], whose heads begin `stride` floats behind each other."""
        return heads(address, count, stride, shape)

    def table(self, address: int, shape: tuple[int, ...], inputs: int) -> Any:
        """A table or mask, which the session changes together with the number `inputs`."""
        return self.only_read(array(address, shape))

    def nothing_hidden(self, shape: tuple[int, int]) -> Any:
        """The mask of a segment that sees everything."""
        return self.only_read(np.zeros(shape, np.float32))

    def phase(self, causal: bool) -> Any:
        """The number, int64 [1], that tells a canvas from text."""
        return _PHASES[1 if causal else 0]

    def noise(self, made: Floats) -> Callable[[], Any]:
        """Noise of a tile, made on the processor: what gives it to the work."""
        return lambda: self.only_read(made)

    def weights(self, given: WeightsStruct) -> Any:
        """The tensors of a run by name."""
        return self._stored.views(given)

    def note(self, *what: Any) -> None:
        """Learn what else the work of the call depends on, for spaces that repeat it."""

    def only_read(self, given: Any) -> Any:
        """The same numbers, for those who must not change them."""
        return read_only(given)

    def joined(self, pieces: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Keys or values of several pieces, one behind the other along the third axis; `shape`: of none."""
        return np.concatenate([np.empty(shape, np.float32), *pieces], 2)

    def looked_at(self, found: Any) -> tuple[tuple[int, ...], str] | None:
        """Shape and kind of type (as numpy's) of an array; None: it is none of this space."""
        return (found.shape, found.dtype.kind) if isinstance(found, np.ndarray) else None

    def fetched(self, found: Any) -> Any:
        """A result on its way to where `numbers` reads it, once the work is done."""
        return found

    def numbers(self, found: Any) -> np.ndarray:
        """What the core may read of a result, once the work is done."""
        made: np.ndarray = found
        return made

    def mixture(self, x: Any, index: Any, weight: Any, experts: int, advice: str) -> Any:
        """A `Mixture`, or what does as it does."""
        return Mixture(x, index, weight, experts, advice)

    def submit(self, work: Work, finish: Work | None = None, repeats: str = "") -> bool:
        """Have work done, in the order of the calls, and `finish` called behind it by the session's thread.
        `repeats`: with equal arguments it does the same, under this name. Returns whether it is under way.
        """
        work()
        if finish is not None:
            finish()
        return False

    def now(self, work: Callable[[], T], then: Callable[[T], object], repeats: str = "") -> None:
        """Have work done, and more with what it has made, and wait for both; `repeats` as in `submit`."""
        then(work())

    def defer(self, expert: Expert, run: Callable[[Sequence[Expert]], None]) -> bool:
        """Have an expert run, maybe later and together with others of its layer. Returns as `submit`."""
        run([expert])
        return False

    def hold(self, unit: bytes | None) -> None:
        """Keep a unit's weights at hand while the experts of its layer run; None: they have."""

    def allocate(self, nbytes: int) -> int | None:
        """The address of memory of the engine's own; None: there is none left."""
        raise NotImplementedError

    def release(self, address: int, nbytes: int) -> None:
        """Take it back."""
        raise NotImplementedError

    def copy(self, copies: Sequence[CopyStruct]) -> bool:
        """Make copies one after the other. Returns as `submit`."""
        raise NotImplementedError

    def room(self) -> int:
        """Bytes of weights that a device beside the memory of the process has room for."""
        return 0

    def keep(self, given: WeightsStruct) -> bool:
        """Have a copy of a unit there, for all calls to come, in which it has no data. Returns whether there
        was memory for it.
        """
        return False

    def lend(self, address: int, nbytes: int) -> None:
        """Learn of memory of the session where weights will lie."""

    def take_back(self, address: int, nbytes: int) -> None:
        """Forget it: it is about to go."""

    def wait(self, count: int) -> None:
        """Wait for the first `count` pieces of work that were submitted. Raises what one has raised."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the session has used."""
