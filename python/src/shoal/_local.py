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

# Outputs of more bytes than this are not copied: the caller gets a view of the memory that the server wrote to.
LENT_FROM = 64 << 10
# So many blocks of a connection may be lent at once; who keeps more gets copies.
MOST_LENT = 8
# So many blocks wait for the next call.
MOST_IDLE = 4
# So many calls of an event loop are under way at once; others wait.
MOST_CALLS = 128
# How much later than its timeout a call is given up that the server has not answered.
GRACE = 5.0


class About(NamedTuple):
    """What is equal in many calls of a program."""

    model: str
    version: str
    inputs: tuple[str, ...]  # their names
    outputs: tuple[str, ...]  # those that are wanted; none means all


class Call(NamedTuple):
    """What is asked of a model."""

    about: About
    arrays: Sequence[Array]
    timeout: Optional[float]
    priority: int


class Plan:
    """Where the inputs of a call go, what its frame says of them, and how its last answer was read. Calls of the same types and shapes share one."""

    __slots__ = ("_last", "inputs", "room", "size", "strings", "table")

    def __init__(self, call: Call, codes: Sequence[int]) -> None:
        at = 0
        about = call.about
        parts = [_wire.text(about.model), _wire.text(about.version), _wire.U32.pack(len(codes))]
        self.strings = [_wire.to_strings(one) if code == _wire.BYTES else None for one, code in zip(call.arrays, codes)] if _wire.BYTES in codes else None
        self.inputs: list[tuple[int, int]] = []  # offset and length
        for i, (name, one, code) in enumerate(zip(about.inputs, call.arrays, codes)):
            text = self.strings[i] if self.strings else None
            length = one.nbytes if text is None else len(text)
            parts += [_wire.text(name), _wire.PLACE.pack(code, at, length, one.ndim), struct.pack(f"<{one.ndim}q", *one.shape)]
            self.inputs.append((at, length))
            at = _wire.aligned(at + length)
        parts.append(_wire.U32.pack(len(about.outputs)))
        parts += map(_wire.text, about.outputs)
        self.table = b"".join(parts)
        self.size = at
        self.room = 4096  # until an answer says more
        self._last: tuple[bytes, list[_wire.Output], int] = b"", [], 0  # replaced as one, because threads share plans

    def read(self, table: bytes) -> tuple[list[_wire.Output], int]:
        """The outputs of an answer, and how much room they take. Most answers are described as the one before."""
        last = self._last
        if table != last[0]:
            outputs = _wire.read_outputs(table)
            last = self._last = table, outputs, sum(_wire.aligned(length) for _, _, _, length, _ in outputs)
        return last[1], last[2]


class Connection:
    """A socket and the memory that goes with it. It is used by one thread at a time."""

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
                raise _errors.UnsupportedError(f"found a server at {path} that speaks otherwise; install the package and the server of one release")
            _, self._most = _wire.TIMES.unpack(rest)  # calls, and bytes
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def send(self, kind: int, number: int, rest: bytes = b"") -> None:
        self.socket.send(_wire.FRAME.pack(kind, 0, number, 0, 0, 0) + rest)

    def receive(self) -> tuple[int, int, int, bytes, list[int]]:
        """Kind, flags and number of the next frame, what follows them, and descriptors. An error that ends the connection is raised."""
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

    def describe(self, model: str) -> tuple[int, int, bytes]:
        """Kind, flags and what follows of the answer to a question about a model."""
        self.send(_wire.MODEL, self.number(), model.encode())
        kind, flags, _, rest, _ = self.receive()
        return kind, flags, rest

    def number(self) -> int:
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def block(self, need: int) -> _memory.Block:
        """Memory that nobody uses. If there is none as long as others are in use, it would block."""
        while len(self._idle) > MOST_IDLE:
            self._free(self._idle.popleft())
        while self._idle:
            block = self._idle.pop()
            if block.size >= need:
                return block
            self._free(block)
        size = _memory.size_for(need)
        if size > self._most - self._shared:
            raise BlockingIOError
        block = _memory.Block(self._memories + 1, size, self.socket)
        self._memories += 1
        self._shared += size
        return block

    def _free(self, block: _memory.Block) -> None:
        self._shared -= block.size
        self.send(_wire.FREE, block.number)

    def begin(self, call: Call, plan: Plan, flags: int = 0) -> tuple[int, _memory.Block]:
        """Writes the inputs to memory and sends the frame."""
        block = self.block(plan.size + plan.room)
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
            if len(block.views) > 16:
                block.views.clear()
            block.views[plan] = views
        for i, to in enumerate(views):
            text = plan.strings[i] if plan.strings else None
            to[...] = call.arrays[i] if text is None else numpy.frombuffer(text, numpy.uint8)

    def end(self, kind: int, flags: int, rest: bytes, fds: list[int], plan: Plan, block: _memory.Block) -> Outputs:
        """The arrays of an answer. The block is used again, at once or when the last of them is gone that is a view of it."""
        if kind != _wire.ANSWER:
            self._idle.append(block)
            if kind != _wire.FAILED:
                raise _errors.InternalError(f"found a frame of kind {kind}, expected an answer")
            raise refused(rest)
        outputs, size = plan.read(rest)
        if flags & _wire.WITH_MEMORY:
            plan.room = max(plan.room, size)
            self._idle.append(block)
            memory = _memory.received(fds, size)
            return arrays(outputs, memory or b"")
        if size < LENT_FROM or len(self._lent) >= MOST_LENT:
            answer = arrays(outputs, block.map)
            self._idle.append(block)
            return answer
        self._lent.add(block.number)
        hold = _memory.Hold(self._back(block))
        return {
            one[0]: _memory.view(hold, block.address + one[2], one[4], _wire.DTYPES[one[1]]) if one[1] in _wire.DTYPES else copied(one, block.map)
            for one in outputs
        }

    def _back(self, block: _memory.Block) -> Callable[[], None]:
        """What is called, by any thread, when a block is not lent any more. It does not keep the connection."""
        idle, lent = self._idle, self._lent

        def back() -> None:
            lent.discard(block.number)
            idle.append(block)

        return back


def arrays(outputs: list[_wire.Output], memory: Union[bytes, mmap.mmap]) -> Outputs:
    return {one[0]: copied(one, memory) for one in outputs}


def copied(output: _wire.Output, memory: Union[bytes, mmap.mmap]) -> Array:
    _, code, offset, length, shape = output
    dtype = _wire.DTYPES.get(code)
    if dtype is not None:
        own: Array = numpy.ndarray(shape, dtype, memory, offset).copy()
        return own
    return _wire.from_bytes(code, shape, memoryview(memory)[offset : offset + length])


def refused(rest: bytes) -> _errors.Error:
    """What the rest of a FAILED frame says."""
    code, retry = _wire.TIMES.unpack_from(rest)
    return failure(code, retry, rest[_wire.TIMES.size :])


def failure(code: int, retry: int, text: bytes) -> _errors.Error:
    kind = _errors.BY_CODE[code] if code < len(_errors.BY_CODE) else _errors.InternalError
    return kind(text.decode("utf-8", "replace"), retry / 1e6 or None)


class _Line:
    """The calls of one event loop, all over one connection. It does not keep the loop, so that it ends with it."""

    def __init__(self, connection: Connection, gone: Callable[[], None]) -> None:
        self.connection, self.gone = connection, gone
        self.calls = asyncio.Semaphore(MOST_CALLS)
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
            except Exception as e:  # it is the caller's
                if not future.done():
                    future.set_exception(e)
                continue
            if not future.done():
                future.set_result(answer)

    def close(self, cause: Optional[_errors.Error] = None) -> None:
        self.gone()
        if self.connection.socket.fileno() < 0:
            return  # it is closed
        asyncio.get_running_loop().remove_reader(self.connection.socket.fileno())
        self.connection.close()
        for future, _, _ in self.waiting.values():
            if not future.done():
                future.set_exception(cause or ended(self.connection.path))
        self.waiting.clear()

    async def ask(self, call: Call, plan: Plan) -> Outputs:
        async with self.calls:
            while True:
                try:
                    number, block = self.connection.begin(call, plan)
                    break
                except BlockingIOError:
                    if not self.waiting:
                        raise too_large(plan) from None
                    await asyncio.sleep(0.001)  # other calls have all the memory, or the server has a lot to read
                except OSError:
                    self.close()
                    raise ended(self.connection.path) from None
            future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
            self.waiting[number] = future, plan, block
            try:
                return await future
            except asyncio.CancelledError:
                if number in self.waiting:  # its memory comes back with the answer
                    with contextlib.suppress(OSError):
                        self.connection.send(_wire.CANCEL, number)
                raise


def too_large(plan: Plan) -> _errors.InvalidError:
    return _errors.InvalidError(f"found arrays of {plan.size} bytes, expected no more than the server takes, together with outputs that are kept; send fewer rows")


def ended(path: str) -> _errors.UnavailableError:
    return _errors.UnavailableError(f"the server at {path} has ended")


class Local:
    """A server on this machine. Each call has a connection for itself, which the next one uses again; the calls of an event loop share one."""

    def __init__(self, path: str, connect: Optional[Callable[[], Connection]] = None) -> None:
        self.path = path
        self._opens = connect or (lambda: Connection(path))
        self._plans: dict[Any, Plan] = {}
        self.forget()
        forget_when_forked(self)

    def forget(self) -> None:
        """Leaves connections and memory to the process that this one was forked from."""
        self._idle: collections.deque[Connection] = collections.deque()
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()

    def _take(self) -> Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _connect(self) -> Connection:
        try:
            return self._opens()
        except OSError as e:
            if isinstance(e, _errors.Error):
                raise
            raise _errors.UnavailableError(f"found no server at {self.path}: {e}") from e

    def _plan(self, call: Call) -> Plan:
        """How a call is written. An array that no model takes is an error."""
        key = (call.about, *[(one.dtype, one.shape) for one in call.arrays])
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        plan = Plan(call, _wire.codes_of(call.arrays))
        if plan.strings is None:  # which differ in size from call to call
            if len(self._plans) > 1000:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def describe(self, model: str, timeout: float) -> dict[str, Any]:
        """What the server says of a model, once it has loaded its models."""
        until = time.monotonic() + timeout
        while True:
            connection = self._take()
            try:
                kind, flags, rest = connection.describe(model)
            except OSError:
                connection.close()
                raise ended(self.path) from None
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
            if kind == _wire.DESCRIPTION:
                description: dict[str, Any] = json.loads(rest)
                return description
            if not flags & _wire.STILL_LOADING or time.monotonic() > until:
                raise refused(rest)
            time.sleep(0.02)

    def ask(self, call: Call) -> Outputs:
        plan = self._plan(call)
        connection = self._take()
        try:
            if call.timeout is not None:
                connection.socket.settimeout(call.timeout + GRACE)
            _, block = connection.begin(call, plan, _wire.NOTHING_ELSE)
            kind, flags, _, rest, fds = connection.receive()
            if call.timeout is not None:
                connection.socket.settimeout(None)
        except BlockingIOError:
            self._idle.append(connection)  # nothing was sent
            raise too_large(plan) from None
        except TimeoutError:
            connection.close()
            raise _errors.DeadlineError(f"the server at {self.path} has not answered {GRACE:g} s after the timeout of {call.timeout:g} s") from None
        except OSError:
            connection.close()
            raise ended(self.path) from None
        except BaseException:
            connection.close()  # its answer would be taken for that of the next call
            raise
        try:
            return connection.end(kind, flags, rest, fds, plan, block)
        finally:
            self._idle.append(connection)

    async def ask_async(self, call: Call) -> Outputs:
        plan = self._plan(call)
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            connection = await loop.run_in_executor(None, self._connect)
            line = self._lines.get(loop)
            if line is None:
                line = self._lines[loop] = _Line(connection, self._gone)
            else:
                connection.close()  # another task was quicker
        return await line.ask(call, plan)

    def _gone(self) -> None:
        self._lines.pop(asyncio.get_running_loop(), None)

    def close(self) -> None:
        """Closes connections that are idle, and those of event loops."""
        while self._idle:
            self._idle.pop().close()
        for loop, line in list(self._lines.items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(line.close)


class _Forgets(Protocol):
    def forget(self) -> None: ...


_all: weakref.WeakSet[_Forgets] = weakref.WeakSet()


def forget_when_forked(one: _Forgets) -> None:
    _all.add(one)


def _forked() -> None:
    for one in _all:
        one.forget()


os.register_at_fork(after_in_child=_forked)
