"""Calls to a server on this machine, over its Unix socket."""

from __future__ import annotations

import array
import asyncio
import collections
import contextlib
import json
import math
import mmap
import os
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy

from . import _errors, _memory, _wire

Array = numpy.ndarray[Any, Any]
Outputs = dict[str, Array]

# Outputs of this size or more are not copied: the caller gets views of the memory that the server wrote to.
MIN_LENT_BYTES = 64 << 10
# How many blocks of a connection may be lent to arrays at the same time. Beyond that, and if no other block of the same size can be had, outputs are copied.
MAX_LENT = 8
# How many idle blocks a connection keeps for later calls.
MAX_IDLE = 4
# How many calls of one event loop may be in flight. Further calls wait.
MAX_CALLS = 128
# How many seconds after its timeout a call fails if the server has not answered.
GRACE = 5.0
# The longest timeout in seconds: a socket can have one of 24 days.
MAX_TIMEOUT = 1_000_000


class Target(NamedTuple):
    """The part of a call that is the same in many calls of a program."""

    model: str
    version: str
    inputs: tuple[str, ...]  # names
    outputs: tuple[str, ...]  # names of the requested outputs; empty means all


class Call(NamedTuple):
    """An inference request."""

    target: Target
    arrays: Sequence[Array]
    timeout: Optional[float]
    priority: int


class Plan:
    """The memory layout of a call's inputs, the table that describes them, and the decoded table of the last response. Calls with the same types and shapes
    share a plan."""

    __slots__ = ("_last", "inputs", "room", "size", "strings", "table")

    def __init__(self, call: Call, codes: Sequence[int]) -> None:
        at = 0
        target = call.target
        parts = [_wire.text(target.model), _wire.text(target.version), _wire.U32.pack(len(codes))]
        self.strings = [_wire.to_strings(one) if code == _wire.BYTES else None for one, code in zip(call.arrays, codes)] if _wire.BYTES in codes else None
        self.inputs: list[tuple[int, int]] = []  # offset and length
        for i, (name, one, code) in enumerate(zip(target.inputs, call.arrays, codes)):
            text = self.strings[i] if self.strings else None
            length = one.nbytes if text is None else len(text)
            parts += [_wire.text(name), _wire.PLACE.pack(code, at, length, one.ndim), struct.pack(f"<{one.ndim}q", *one.shape)]
            self.inputs.append((at, length))
            at = _wire.aligned(at + length)
        parts.append(_wire.U32.pack(len(target.outputs)))
        parts += map(_wire.text, target.outputs)
        self.table = b"".join(parts)
        self.size = at
        self.room = 4096  # bytes for the outputs; grows with the responses
        self._last: tuple[bytes, list[_wire.Output], int] = b"", [], 0  # replaced as a whole, because threads share plans

    def read(self, table: bytes) -> tuple[list[_wire.Output], int]:
        """Returns the outputs of a response and the number of bytes that they take. Most tables equal the previous one."""
        last = self._last
        if table != last[0]:
            outputs = _wire.read_outputs(table)
            last = self._last = table, outputs, sum(_wire.aligned(length) for _, _, _, length, _ in outputs)
        return last[1], last[2]


class Connection:
    """A socket and the shared memory that belongs to it. It is used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._buffer = bytearray(_wire.MAX_FRAME)
        self._into = [memoryview(self._buffer)]
        self._idle: collections.deque[_memory.Block] = collections.deque()
        self._lent: set[int] = set()
        self._number = 0
        self._memories = 0
        self._shared = 0  # bytes
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.connect(path)
            self.socket.send(_wire.FRAME.pack(_wire.HELLO, 0, 0, _wire.PROTOCOL, 0, 0))
            kind, _, _, rest, _ = self.receive()
            if kind != _wire.WELCOME:
                raise _errors.UnsupportedError(f"the server at {path} speaks another version of the protocol; install the package and the server of the same release")
            _, self._max_shared = _wire.TIMES.unpack(rest)  # calls, and bytes
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def send(self, kind: int, number: int, rest: bytes = b"", first: int = 0) -> None:
        self.socket.send(_wire.FRAME.pack(kind, 0, number, first, 0, 0) + rest)

    def receive(self) -> tuple[int, int, int, bytes, list[int]]:
        """Returns kind, flags and number of the next frame, its remaining bytes, and its descriptors. Raises an error that ends the connection."""
        n, ancillary, _, _ = self.socket.recvmsg_into(self._into, 64)
        fds: list[int] = []
        for level, what, data in ancillary:
            if level == socket.SOL_SOCKET and what == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                fds.extend(received)
        if n < _wire.FRAME.size:
            raise ConnectionResetError("the connection was closed")
        kind, flags, number, a, b, c = _wire.FRAME.unpack_from(self._buffer)
        rest = bytes(self._into[0][_wire.FRAME.size : n])
        if kind == _wire.FAILED and number == 0:
            raise failure(a, b, rest)
        if kind == _wire.FAILED:
            rest = _wire.TIMES.pack(a, b) + rest
        if kind == _wire.WELCOME:
            rest = _wire.TIMES.pack(b, c)
        return kind, flags, number, rest, fds

    def describe(self, model: str, version: str = "") -> tuple[int, int, bytes]:
        """Asks for the description of a model. Returns kind, flags and remaining bytes of the response."""
        name = _wire.encode(model)
        self.send(_wire.MODEL, self.number(), name + _wire.encode(version), len(name))
        kind, flags, _, rest, _ = self.receive()
        return kind, flags, rest

    def number(self) -> int:
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def block(self, need: int) -> _memory.Block:
        """Returns an unused block. Raises BlockingIOError if the connection's memory is used up, or the socket's buffer is full."""
        while len(self._idle) > MAX_IDLE:
            self._free(self._idle.popleft())
        while self._idle:
            block = self._idle.pop()
            if block.size >= need:
                return block
            self._free(block)
        size = _memory.size_for(need)
        if size > self._max_shared - self._shared:
            raise BlockingIOError
        block = _memory.Block(self._memories + 1, size, self.socket)
        self._memories += 1
        self._shared += size
        return block

    def _free(self, block: _memory.Block) -> None:
        try:
            self.send(_wire.FREE, block.number)
        except BlockingIOError:
            self._idle.append(block)  # the server still has it
            raise
        self._shared -= block.size

    def begin(self, call: Call, plan: Plan, flags: int = 0) -> tuple[int, _memory.Block]:
        """Writes the inputs to shared memory and sends the INFER frame."""
        try:
            block = self.block(plan.size + plan.room)
        except BlockingIOError:
            block = self.block(plan.size)  # the server passes outputs without room in memory of their own
        try:
            self._write(call, plan, block)
            number = self.number()
            timeout = 0 if call.timeout is None else max(1, math.ceil(call.timeout * 1e6))
            head = _wire.INFERENCE.pack(_wire.INFER, flags, number, block.number, plan.size, block.size - plan.size, timeout, call.priority)
            self.socket.send(head + plan.table)
        except BaseException:
            self._idle.append(block)
            raise
        return number, block

    def _write(self, call: Call, plan: Plan, block: _memory.Block) -> None:
        views = block.views.get(plan)
        if views is None:
            views = []
            for i, (one, (at, length)) in enumerate(zip(call.arrays, plan.inputs)):
                if plan.strings and plan.strings[i] is not None:
                    views.append(numpy.ndarray((length,), numpy.uint8, block.map, at))
                else:
                    views.append(numpy.ndarray(one.shape, one.dtype.newbyteorder("="), block.map, at))
            if plan.strings is None:  # others are for one call, and have its strings
                if len(block.views) > 16:
                    block.views.clear()
                block.views[plan] = views
        for i, to in enumerate(views):
            text = plan.strings[i] if plan.strings else None
            to[...] = call.arrays[i] if text is None else numpy.frombuffer(text, numpy.uint8)

    def end(self, kind: int, flags: int, rest: bytes, fds: list[int], plan: Plan, block: _memory.Block) -> Outputs:
        """Returns the arrays of a response. The block becomes idle again: immediately, or when the last array that is a view of it is deleted."""
        if kind != _wire.ANSWER:
            self._idle.append(block)
            if kind != _wire.FAILED:
                raise _errors.InternalError(f"found a frame of kind {kind}, expected a response")
            raise failed_frame_error(rest)
        outputs, size = plan.read(rest)
        if flags & _wire.WITH_MEMORY:
            plan.room = max(plan.room, size)
            self._idle.append(block)
            memory = _memory.received(fds, size)
            return arrays(outputs, memory or b"")
        full = self._shared + block.size > self._max_shared  # if this block is lent, the next call may find no memory
        if size < MIN_LENT_BYTES or len(self._lent) >= MAX_LENT or full:
            answer = arrays(outputs, block.map)
            self._idle.append(block)
            return answer
        self._lent.add(block.number)
        hold = _memory.Hold(self._releaser(block))
        return {
            one[0]: _memory.view(hold, block.address + one[2], one[4], _wire.DTYPES[one[1]]) if one[1] in _wire.DTYPES else copied(one, block.map)
            for one in outputs
        }

    def _releaser(self, block: _memory.Block) -> Callable[[], None]:
        """Returns the function that takes a lent block back. Any thread may call it. It does not keep the connection alive."""
        idle, lent = self._idle, self._lent

        def release() -> None:
            lent.discard(block.number)
            idle.append(block)

        return release


def arrays(outputs: list[_wire.Output], memory: Union[bytes, mmap.mmap]) -> Outputs:
    return {one[0]: copied(one, memory) for one in outputs}


def copied(output: _wire.Output, memory: Union[bytes, mmap.mmap]) -> Array:
    _, code, offset, length, shape = output
    dtype = _wire.DTYPES.get(code)
    if dtype is not None:
        own: Array = numpy.ndarray(shape, dtype, memory, offset).copy()
        return own
    return _wire.from_bytes(code, shape, memoryview(memory)[offset : offset + length])


def failed_frame_error(rest: bytes) -> _errors.Error:
    """Returns the error in the remaining bytes of a FAILED frame."""
    code, retry = _wire.TIMES.unpack_from(rest)
    return failure(code, retry, rest[_wire.TIMES.size :])


def failure(code: int, retry: int, text: bytes) -> _errors.Error:
    kind = _errors.BY_CODE[code] if code < len(_errors.BY_CODE) else _errors.InternalError
    return kind(text.decode("utf-8", "replace"), retry / 1e6 or None)


class _AsyncConnection:
    """The connection that all calls of one event loop share. It refers to the loop only by calls that had to wait, or were not answered."""

    def __init__(self, connection: Connection, on_close: Callable[[], None]) -> None:
        self.connection, self.on_close = connection, on_close
        self.calls = asyncio.Semaphore(MAX_CALLS)
        self.users = 0  # calls that have not returned, including those that wait
        self.closing = False  # the connection is closed when it has no users
        self.closed = False
        self.waiting: dict[int, tuple[asyncio.Future[Outputs], Plan, _memory.Block]] = {}
        connection.socket.setblocking(False)
        asyncio.get_running_loop().add_reader(connection.socket.fileno(), self.read)

    def read(self) -> None:
        while True:
            try:
                kind, flags, number, rest, fds = self.connection.receive()
            except BlockingIOError:
                return
            except (OSError, _errors.Error) as e:
                self.close(e if isinstance(e, _errors.Error) else None)
                return
            future, plan, block = self.waiting.pop(number)
            try:
                answer = self.connection.end(kind, flags, rest, fds, plan, block)
            except Exception as e:  # raised in the caller
                if not future.done():
                    future.set_exception(e)
                continue
            if not future.done():
                future.set_result(answer)

    def close_when_idle(self) -> None:
        self.closing = True
        if not self.users:
            self.close()

    def close(self, cause: Optional[_errors.Error] = None) -> None:
        if self.closed:
            return
        self.closed = True
        self.on_close()
        if self.connection.socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.connection.socket.fileno())
            self.connection.close()
        for future, _, _ in self.waiting.values():
            if not future.done():
                future.set_exception(cause or server_exited(self.connection.path))
        self.waiting.clear()

    async def infer(self, call: Call, plan: Plan) -> Outputs:
        self.users += 1
        try:
            return await self._infer(call, plan)
        finally:
            self.users -= 1
            if self.closing and not self.users:
                self.close()

    async def _infer(self, call: Call, plan: Plan) -> Outputs:
        async with self.calls:
            while True:
                try:
                    number, block = self.connection.begin(call, plan)
                    break
                except BlockingIOError:
                    if self.connection.socket.fileno() < 0:
                        raise server_exited(self.connection.path) from None
                    if not self.waiting:
                        raise too_large(plan) from None
                    await asyncio.sleep(0.001)  # other calls use all the memory, or the socket's buffer is full
                except OSError:
                    self.close()
                    raise server_exited(self.connection.path) from None
            future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
            self.waiting[number] = future, plan, block
            try:
                if call.timeout is None:
                    return await future
                done, _ = await asyncio.wait([future], timeout=call.timeout + GRACE)
                if not done:
                    raise not_answered(self.connection.path, call.timeout)
                return future.result()
            except (asyncio.CancelledError, _errors.DeadlineError):
                future.cancel()
                if number in self.waiting:  # its block becomes idle with the response
                    with contextlib.suppress(OSError):
                        self.connection.send(_wire.CANCEL, number)
                raise


def too_large(plan: Plan) -> _errors.InvalidError:
    return _errors.InvalidError(f"found arrays of {plan.size} bytes, which together with the outputs that the program keeps exceed the server's limit; send fewer rows")


def server_exited(path: str) -> _errors.UnavailableError:
    return _errors.UnavailableError(f"the server at {path} has exited")


def not_answered(path: str, timeout: Optional[float]) -> _errors.DeadlineError:
    return _errors.DeadlineError(f"the server at {path} did not answer within {GRACE:g} s after the timeout of {timeout:g} s")


class Local:
    """The transport to a server on this machine. Each call has a connection of its own while it runs, and idle connections are reused. The calls of an event
    loop share one."""

    def __init__(self, path: str, connect: Optional[Callable[[], Connection]] = None) -> None:
        self.path = path
        self._open = connect or (lambda: Connection(path))
        self._plans: dict[Any, Plan] = {}
        self.reset()
        reset_when_forked(self)

    def reset(self) -> None:
        """Drops connections and memory without closing them: after a fork they belong to the parent process."""
        self._idle: collections.deque[Connection] = collections.deque()
        self._async_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncConnection] = weakref.WeakKeyDictionary()

    def _take(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _connect(self) -> Connection:
        try:
            return self._open()
        except OSError as e:
            if isinstance(e, _errors.Error):
                raise
            raise _errors.UnavailableError(f"found no server at {self.path}: {e}") from e

    def _plan(self, call: Call) -> Plan:
        """Returns the plan for a call. Raises InvalidError for an array of a type that no model takes."""
        key = (call.target, *[(one.dtype, one.shape) for one in call.arrays])
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        plan = Plan(call, _wire.codes_of(call.arrays))
        if plan.strings is None:  # the size of strings differs from call to call
            if len(self._plans) > 1000:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def describe(self, model: str, version: str, timeout: float) -> dict[str, Any]:
        """Returns the metadata of a model, once the server has loaded its models."""
        until = time.monotonic() + timeout
        while True:
            connection = self._take()
            try:
                kind, flags, rest = connection.describe(model, version)
            except OSError:
                connection.close()
                raise server_exited(self.path) from None
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
            if kind == _wire.DESCRIPTION:
                description: dict[str, Any] = json.loads(rest)
                return description
            if not flags & _wire.STILL_LOADING or time.monotonic() > until:
                raise failed_frame_error(rest)
            time.sleep(0.02)

    def infer(self, call: Call) -> Outputs:
        plan = self._plan(call)
        connection = self._take()
        try:
            if call.timeout is not None:
                connection.socket.settimeout(call.timeout + GRACE)
            _, block = connection.begin(call, plan, _wire.NO_OTHER_FRAME)
            kind, flags, _, rest, fds = connection.receive()
            if call.timeout is not None:
                connection.socket.settimeout(None)
        except BlockingIOError:
            connection.socket.settimeout(None)
            self._idle.append(connection)  # nothing was sent
            raise too_large(plan) from None
        except TimeoutError:
            connection.close()
            raise not_answered(self.path, call.timeout) from None
        except OSError:
            connection.close()
            raise server_exited(self.path) from None
        except BaseException:
            connection.close()  # the next call would receive this call's response
            raise
        try:
            return connection.end(kind, flags, rest, fds, plan, block)
        finally:
            self._idle.append(connection)

    async def infer_async(self, call: Call) -> Outputs:
        plan = self._plan(call)
        loop = asyncio.get_running_loop()
        shared = self._async_connections.get(loop)
        if shared is None:
            self._close_ended()
            connection = await loop.run_in_executor(None, self._connect)
            shared = self._async_connections.get(loop)
            if shared is None:
                shared = self._async_connections[loop] = _AsyncConnection(connection, self._remove)
            else:
                connection.close()  # another task has opened one meanwhile
        return await shared.infer(call, plan)

    def _remove(self) -> None:
        self._async_connections.pop(asyncio.get_running_loop(), None)

    def close(self) -> None:
        """Closes the idle connections. Those of event loops are closed when their calls have returned."""
        while self._idle:
            self._idle.pop().close()
        self._close_ended()
        for loop, shared in list(self._async_connections.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(shared.close_when_idle)

    def _close_ended(self) -> None:
        """Closes the connections of event loops that have ended, and which are not deleted because the connections refer to them."""
        for loop, shared in list(self._async_connections.items()):
            if loop.is_closed():
                self._async_connections.pop(loop, None)
                shared.connection.close()


class _Resettable(Protocol):
    def reset(self) -> None: ...


_all: weakref.WeakSet[_Resettable] = weakref.WeakSet()


def reset_when_forked(one: _Resettable) -> None:
    _all.add(one)


def _forked() -> None:
    for one in _all:
        one.reset()


os.register_at_fork(after_in_child=_forked)
