"""Memory that a client shares with the server, and uses again for the next call."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from typing import Any, Callable, Optional

import numpy

from . import _wire

# Of fcntl, which Python has names for on newer systems only.
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4

_SMALLEST = 128 << 10


def size_for(need: int) -> int:
    """How large a block is that so many bytes fit into."""
    size = _SMALLEST
    while size < need:
        size *= 2
    return size


class Block:
    """A piece of memory. It is used by one call at a time, and until the arrays are gone that are views of it."""

    __slots__ = ("address", "map", "number", "size", "views")

    def __init__(self, number: int, size: int, connection: socket.socket) -> None:
        fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)  # or else a write would end the program when there is no memory left
            fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            self.map = mmap.mmap(fd, size)
            socket.send_fds(connection, [_wire.FRAME.pack(_wire.MEMORY, 0, number, size, 0, 0)], [fd])
        finally:
            os.close(fd)
        self.number, self.size = number, size
        self.address: int = numpy.frombuffer(self.map, numpy.uint8).ctypes.data
        self.views: dict[Any, list[numpy.ndarray[Any, Any]]] = {}  # for inputs, by what they are for


class Hold:
    """Tells when the last array is gone that is a view of some memory."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def __del__(self) -> None:
        self._then()


class _Lease:
    __slots__ = ("__array_interface__", "_hold")

    def __init__(self, hold: Hold, interface: dict[str, Any]) -> None:
        self._hold = hold
        self.__array_interface__ = interface


def view(hold: Hold, address: int, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
    """An array in memory that is there as long as hold is, which the array and all views of it keep."""
    return numpy.asarray(_Lease(hold, {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}))


def received(fds: list[int], size: int) -> Optional[mmap.mmap]:
    """The memory that came with a frame. It is ours alone."""
    try:
        return mmap.mmap(fds[0], size) if size else None
    finally:
        for fd in fds:
            os.close(fd)
