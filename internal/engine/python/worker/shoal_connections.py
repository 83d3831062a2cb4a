"""Connections for one call to another model, or for the responses to one request. wire.go describes how they are used.

A message is a payload: a JSON document followed by the tensors that it lists, in a memory file that is passed along and then belongs to the receiver.
"""

import array
import json
import mmap
import os
import select
import socket
import sys
import threading

import shoal_wire as wire
from shoal_numpy import np

# Size of the send buffer. When it is full, send blocks: a slow client slows down its own model and no other.
SEND_BUFFER = 32 << 10
# That of a connection for responses. It does not count the memory of a response, only its frame, so it is the smallest that the kernel has: some six frames.
RESPONSE_BUFFER = 1


def pair(buffer=SEND_BUFFER):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    return ours, theirs


def send(connection, kind, flags=0, number=0, a=0, b=0, descriptors=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([wire.FRAME.pack(kind, flags, number, a, b, 0)], rights)


def put(memory, at, size, data):
    """Copies an array into memory."""
    try:
        memory[at:at + size] = data
    except ValueError:  # the array is not contiguous
        np.ndarray(data.shape, data.dtype, memory, at)[...] = data


def pack(document, tensors):
    """Returns a payload as a descriptor, which the caller closes, the length of its document, and its total length. Raises an error for what the server would
    take for a violation of the protocol."""
    listed, contents = [], []
    for t in tensors:
        if not isinstance(t._name, str):
            raise TypeError("Tensor: found the name %r, expected a string" % (t._name,))
        data, shape = t._content()
        listed.append({"name": t._name, "type": t._code, "shape": list(shape), "length": data.nbytes})
        contents.append(data)
    text = json.dumps(dict(document, tensors=listed), allow_nan=False).encode()
    size = wire.aligned(len(text), 64) + sum(wire.aligned(data.nbytes, 64) for data in contents)
    if size > wire.MAX_MEMORY:
        raise ValueError("found tensors of %d bytes, and the server accepts at most %d" % (size, wire.MAX_MEMORY))
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


def send_payload(connection, kind, document, tensors, flags=0, descriptors=()):
    """Sends a payload. The given descriptors are passed before its own."""
    descriptor, length, size = pack(document, tensors)
    try:
        send(connection, kind, flags, 0, length, size, [*descriptors, descriptor])
    finally:
        os.close(descriptor)


def receive(connection, view):
    """Returns the next payload: its document, its tensors, each created by view, and whether it is the last. None if the connection is closed."""
    data, ancillary, _, _ = connection.recvmsg(wire.FRAME.size, 64)
    if not data:
        return None
    _, flags, _, length, size, _ = wire.FRAME.unpack(data)
    descriptor = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
    memory = mmap.mmap(descriptor, size)
    os.close(descriptor)
    document = json.loads(memory[:length])
    base, at, tensors = np.frombuffer(memory, dtype=np.uint8), wire.aligned(length, 64), []
    for t in document.get("tensors", []):
        tensors.append(view(t["name"], t["type"], (tuple(t["shape"]), at, t["length"]), base))
        at = wire.aligned(at + t["length"], 64)
    return document, tensors, bool(flags & wire.LAST_RESPONSE)


class ResponseConnection:
    """The worker's end of a connection for the responses to one request. It is thread-safe."""

    def __init__(self, worker_connection, number, index):
        self.connection, theirs = pair(RESPONSE_BUFFER)
        self.lock = threading.Lock()
        self.closed = False  # the final response was sent
        send(worker_connection, wire.OPEN_RESPONSES, 0, number, index, 0, [theirs.fileno()])
        theirs.close()

    def send(self, document, tensors, last):
        """Sends a response, or only the final flag if document is None. It is discarded if the client has left. Returns False after the final response."""
        with self.lock:
            if self.closed:
                return False
            flags = wire.LAST_RESPONSE if last else 0
            try:
                if document is None:
                    send(self.connection, wire.SEND, flags)
                else:
                    send_payload(self.connection, wire.SEND, document, tensors, flags)
            except (BrokenPipeError, ConnectionResetError):
                pass
            if last:
                self.closed = True
                self.connection.close()
            return True

    def client_left(self):
        """Returns whether the client has left."""
        with self.lock:
            if self.closed:
                return False
            poll = select.poll()
            poll.register(self.connection, 0)  # reports only that the peer has closed
            return bool(poll.poll(0))

    def __del__(self):
        if not getattr(self, "closed", True):
            try:
                send(self.connection, wire.SEND, wire.SENDER_DROPPED)
                self.connection.close()
            except OSError:
                pass  # the client has left


class WorkerCalls:
    """Sends calls about metrics and other models to the server, one at a time."""

    def __init__(self, side):
        self.side, self.connection, self.lock = side, None, threading.Lock()

    def call(self, document):
        """Returns the resulting number and an error message, which is "" on success."""
        text = json.dumps(document).encode()
        if len(text) > wire.MAX_TEXT:
            return 0.0, "found a call of %d bytes, expected at most %d" % (len(text), wire.MAX_TEXT)
        with self.lock:
            if self.connection is None:
                self.connection, theirs = pair()
                with theirs:
                    send(self.side, wire.OPEN_CALLS, descriptors=[theirs.fileno()])
            self.connection.send(wire.FRAME.pack(wire.WORKER_CALL, 0, 0, 0, 0, 0) + text)
            reply = self.connection.recv(wire.FRAME.size + wire.MAX_TEXT)
        _, failed, _, a, _, _ = wire.FRAME.unpack_from(reply)
        return wire.F64.unpack(wire.U64.pack(a))[0], reply[wire.FRAME.size:].decode() if failed else ""
