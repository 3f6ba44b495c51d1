"""Page-aligned anonymous memory: what direct I/O needs, and what goes back to the system when closed."""

from __future__ import annotations

import contextlib
import mmap

from edgekit.flashload.errors import BudgetExceeded, InvalidRequest


class AlignedBuffer:
    """`nbytes` of zeroed private memory that starts at a page boundary.

    Malloc would neither promise the alignment nor return the memory, so the block is mapped. Pages count
    against the process only once they are written.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise InvalidRequest(f"a buffer of {nbytes} bytes cannot be allocated")
        try:
            if hasattr(mmap, "MAP_PRIVATE"):
                # The default for fd -1 is MAP_SHARED, which the kernel books as shared memory.
                self._map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                self._map = mmap.mmap(-1, nbytes)
        except (OSError, OverflowError, ValueError) as error:
            raise BudgetExceeded(f"cannot map {nbytes} bytes of memory ({error})", nbytes) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Large pages are asked of a disk in fewer pieces. A wish: the memory works without it.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.nbytes = nbytes
        self.view = memoryview(self._map)

    def slice(self, offset: int, nbytes: int) -> memoryview:
        """Writable view of bytes offset..offset+nbytes, no copy."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise InvalidRequest(f"bytes {offset}..{offset + nbytes} are outside a buffer of {self.nbytes}")
        return self.view[offset : offset + nbytes]

    def close(self) -> bool:
        """Return the memory now. False when views of it are alive: it goes back when the last one dies."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            return False
        return True
