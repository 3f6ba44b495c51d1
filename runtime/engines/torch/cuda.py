"""NVIDIA GPUs as devices of the torch engine: all that only CUDA can do. None of it has run on a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from edgekit.runtime.engines.torch.device import Event, Stream, T, Work

#: cudaHostRegisterPortable | cudaHostRegisterMapped: for every context, and with an address on the device.
_REGISTER_FLAGS = 1 | 2


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()


class _CudaStream:
    def __init__(self, place: torch.device) -> None:
        self._stream = torch.cuda.Stream(place)

    def run(self, work: Work) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self) -> Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return _CudaEvent(event)

    def follow(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)


class CudaDevice:
    """A GPU. Memory that the session lends is locked, so that copies from it run beside computation; what
    cannot be locked is copied through memory of the driver. Where GPU and processor have one memory
    (`integrated`), weights in locked memory are used where they lie.
    """

    own_memory = True

    def __init__(self, place: torch.device, integrated: bool, name: str = "") -> None:
        self.place = place
        self.name = name or str(place)
        self._integrated = integrated
        self.compute: Stream = _CudaStream(place)
        self.copies: Stream = _CudaStream(place)
        self._locked: dict[int, tuple[int, int]] = {}  # bytes, and where the GPU sees them, by address
        self._pool = torch.cuda.graph_pool_handle()

    def allocate(self, nbytes: int) -> Tensor:
        try:
            # Of the current stream, which does nothing: only what no work uses is given back.
            return torch.empty(nbytes, dtype=torch.uint8, device=self.place)
        except torch.OutOfMemoryError:
            raise MemoryError from None

    def release(self, block: Tensor) -> None:
        pass  # with its last reference, to the allocator, which keeps it for the next time

    def address(self, block: Tensor) -> int:
        return block.data_ptr()

    def free_bytes(self) -> int:
        if self._integrated:
            return 0
        free, _ = torch.cuda.mem_get_info(self.place)
        reserved, used = torch.cuda.memory_reserved(self.place), torch.cuda.memory_allocated(self.place)
        return int(free + reserved - used)

    def lend(self, place: int, nbytes: int) -> None:
        if int(torch.cuda.cudart().cudaHostRegister(place, nbytes, _REGISTER_FLAGS)) == 0:
            self._locked[place] = nbytes, self._on_device(place) if self._integrated else 0
        else:
            self._forget_error()

    def take_back(self, place: int, nbytes: int) -> None:
        if self._locked.pop(place, None) is not None:
            torch.cuda.cudart().cudaHostUnregister(place)

    def in_place(self, place: int, nbytes: int) -> Tensor | None:
        for start, (length, seen) in self._locked.items():
            if seen and start <= place and place + nbytes <= start + length:
                return torch.as_tensor(_Memory(seen + place - start, nbytes), device=self.place)
        return None

    def upload(self, block: Tensor, host: Tensor) -> None:
        block[: len(host)].copy_(host, non_blocking=True)

    def staged(self, host: Tensor) -> Tensor:
        return torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)

    def fetched(self, found: Tensor) -> Tensor:
        made = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        return made.copy_(found, non_blocking=True)

    def capture(self, work: Callable[[], T]) -> Callable[[], T] | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Graphs share their memory, but for what they give: that is kept, and so has a place of its own.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                made = work()
            finally:
                graph.capture_end()
        except Exception:  # it goes on as it is, where an error of its own shows again
            torch.cuda.synchronize(self.place)
            return None

        def replay() -> T:
            graph.replay()
            return made

        return replay

    def _on_device(self, place: int) -> int:
        """Where the GPU sees locked memory; 0: nowhere."""
        function = _runtime_function("cudaHostGetDevicePointer")
        seen = ctypes.c_void_p()
        if function is None or function(ctypes.byref(seen), ctypes.c_void_p(place), 0) != 0:
            return 0
        return seen.value or 0

    def _forget_error(self) -> None:
        """A refusal stays as CUDA's last error, which the next kernel would be blamed for."""
        function = _runtime_function("cudaGetLastError")
        if function is not None:
            function()


class _Memory:
    """Memory on a device, as `torch.as_tensor` takes it without a copy."""

    def __init__(self, place: int, nbytes: int) -> None:
        shape: Sequence[int] = (nbytes,)
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "|u1", "data": (place, False), "version": 3,
        }  # fmt: skip


def _runtime_function(name: str) -> ctypes._NamedFuncPointer | None:
    """A function of CUDA's runtime that torch does not offer; torch has loaded it for all."""
    return None if os.name == "nt" else getattr(ctypes.CDLL(None), name, None)


def device() -> CudaDevice:
    """The current GPU."""
    index = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(index)
    name = f"{found.name}, compute capability {found.major}.{found.minor}, CUDA {torch.version.cuda}"
    return CudaDevice(torch.device("cuda", index), bool(found.is_integrated), name)
