"""Lines: sockets of their own for one call to another model, or for the responses to one request. wire.go says how they are used.

What goes over a line is a parcel: a document, and behind it the tensors that it lists, in memory that is passed along and belongs to whoever receives it.
"""

import array
import json
import mmap
import os
import select
import socket
import threading

import numpy as np

import shoal_wire as wire

# So much of what was sent may wait to be read, and then send waits: a client that reads slowly makes its own model slow, and no other.
SENT = 32 << 10


def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT)
    return ours, theirs


def send(connection, kind, flags=0, number=0, a=0, b=0, descriptors=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([wire.FRAME.pack(kind, flags, number, a, b, 0)], rights)


def put(memory, at, size, data):
    """Writes an array to memory."""
    try:
        memory[at:at + size] = data
    except ValueError:  # it is not in one piece
        np.ndarray(data.shape, data.dtype, memory, at)[...] = data


def pack(document, tensors):
    """Returns the descriptor of a parcel, which the caller closes, the length of its document, and its own."""
    listed, contents = [], []
    for t in tensors:
        data, shape = t._content()
        listed.append({"name": t._name, "type": t._code, "shape": list(shape), "length": data.nbytes})
        contents.append(data)
    text = json.dumps(dict(document, tensors=listed)).encode()
    size = wire.aligned(len(text), 64) + sum(wire.aligned(data.nbytes, 64) for data in contents)
    descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, size)
        memory = mmap.mmap(descriptor, size)
        memory[:len(text)] = text
        at = wire.aligned(len(text), 64)
        for data in contents:
            put(memory, at, data.nbytes, data)
            at += wire.aligned(data.nbytes, 64)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, len(text), size


def send_parcel(connection, kind, document, tensors, flags=0, beside=()):
    """Sends a parcel, with other descriptors before its own."""
    descriptor, length, size = pack(document, tensors)
    try:
        send(connection, kind, flags, 0, length, size, [*beside, descriptor])
    finally:
        os.close(descriptor)


def receive(line, view):
    """The next parcel of a line: its document, its tensors, each made by view, and whether it is the last. None if the line was closed."""
    data, ancillary, _, _ = line.recvmsg(wire.FRAME.size, 64)
    if not data:
        return None
    _, flags, _, length, size, _ = wire.FRAME.unpack(data)
    descriptor = int.from_bytes(ancillary[0][2][:4], "little" if np.little_endian else "big")
    memory = mmap.mmap(descriptor, size)
    os.close(descriptor)
    document = json.loads(memory[:length])
    base, at, tensors = np.frombuffer(memory, dtype=np.uint8), wire.aligned(length, 64), []
    for t in document.get("tensors", []):
        tensors.append(view(t["name"], t["type"], (tuple(t["shape"]), at, t["length"]), base))
        at = wire.aligned(at + t["length"], 64)
    return document, tensors, bool(flags & wire.LAST)


class Outlet:
    """The worker's end of a line for responses. It may be used by many threads."""

    def __init__(self, connection, number, index):
        self.line, theirs = pair()
        self.lock = threading.Lock()
        self.closed = False  # by the last response
        send(connection, wire.OPEN, 0, number, index, 0, [theirs.fileno()])
        theirs.close()

    def send(self, document, tensors, last):
        """Sends a response; without a document, only that there are no more. It goes nowhere if nobody waits any more. False if it comes after the last."""
        with self.lock:
            if self.closed:
                return False
            flags = wire.LAST if last else 0
            try:
                if document is None:
                    send(self.line, wire.SEND, flags)
                else:
                    send_parcel(self.line, wire.SEND, document, tensors, flags)
            except (BrokenPipeError, ConnectionResetError):
                pass
            if last:
                self.closed = True
                self.line.close()
            return True

    def left(self):
        """Whether nobody waits any more."""
        with self.lock:
            if self.closed:
                return False
            poll = select.poll()
            poll.register(self.line, 0)  # only that the other side is closed
            return bool(poll.poll(0))

    def __del__(self):
        if not getattr(self, "closed", True):
            try:
                send(self.line, wire.SEND, wire.GONE)
                self.line.close()
            except OSError:
                pass  # nobody waits for it


class Desk:
    """Where the server is asked about metrics and other models, one question at a time."""

    def __init__(self, connection):
        self.connection, self.line, self.lock = connection, None, threading.Lock()

    def ask(self, question):
        """The number that answers it, and what is wrong, or nothing."""
        text = json.dumps(question).encode()
        if len(text) > wire.MAX_TEXT:
            return 0.0, "found a question of %d bytes, expected at most %d" % (len(text), wire.MAX_TEXT)
        with self.lock:
            if self.line is None:
                self.line, theirs = pair()
                with theirs:
                    send(self.connection, wire.DESK, descriptors=[theirs.fileno()])
            self.line.send(wire.FRAME.pack(wire.ASK, 0, 0, 0, 0, 0) + text)
            answer = self.line.recv(wire.FRAME.size + wire.MAX_TEXT)
        _, wrong, _, a, _, _ = wire.FRAME.unpack_from(answer)
        return wire.F64.unpack(wire.U64.pack(a))[0], answer[wire.FRAME.size:].decode() if wrong else ""
