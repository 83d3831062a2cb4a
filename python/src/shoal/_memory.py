"""Memory that a client shares with the server, and reuses for later calls."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from typing import Any, Callable, Optional

import numpy

from . import _errors, _wire

# Constants of fcntl for which older Python versions have no names.
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4

_MIN_SIZE = 128 << 10


def size_for(need: int) -> int:
    """Returns the size of a block that can hold need bytes."""
    size = _MIN_SIZE
    while size < need:
        size *= 2
    return size


class Block:
    """A piece of shared memory. It is used by one call at a time, and then by the arrays that are views of it."""

    __slots__ = ("address", "map", "number", "size", "views")

    def __init__(self, number: int, size: int, connection: socket.socket) -> None:
        try:
            fd, self.map = _create(size)
        except OSError as e:  # which must not be taken for one of the connection
            raise _errors.UnavailableError(f"this process could not create {size} bytes of shared memory: {e}") from e
        try:
            socket.send_fds(connection, [_wire.FRAME.pack(_wire.MEMORY, 0, number, size, 0, 0)], [fd])
        finally:
            os.close(fd)
        self.number, self.size = number, size
        self.address: int = numpy.frombuffer(self.map, numpy.uint8).ctypes.data
        self.views: dict[Any, list[numpy.ndarray[Any, Any]]] = {}  # of inputs, by plan


def _create(size: int) -> tuple[int, mmap.mmap]:
    """Returns the descriptor of new memory, which the caller closes, and its mapping."""
    fd = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)  # otherwise a write kills the program when no memory is left
        fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
        return fd, mmap.mmap(fd, size)
    except BaseException:
        os.close(fd)
        raise


class Hold:
    """Calls release when the last array that refers to it is deleted."""

    __slots__ = ("_release",)

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release

    def __del__(self) -> None:
        self._release()


class _Lease:
    __slots__ = ("__array_interface__", "_hold")

    def __init__(self, hold: Hold, interface: dict[str, Any]) -> None:
        self._hold = hold
        self.__array_interface__ = interface


def view(hold: Hold, address: int, shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> numpy.ndarray[Any, Any]:
    """Returns an array at an address. The array and all its views keep a reference to hold, and with it the memory."""
    return numpy.asarray(_Lease(hold, {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}))


def received(fds: list[int], size: int) -> Optional[mmap.mmap]:
    """Maps the memory that came with a frame. The server does not use it any more."""
    try:
        return mmap.mmap(fds[0], size) if size else None
    finally:
        for fd in fds:
            os.close(fd)
