"""The protocol between the server and the worker. wire.go defines the same and explains it.

A frame is 32 bytes, followed by a text for some kinds. Tables and tensors are in shared memory: one region that the server writes and the worker
reads, and one for the opposite direction.
"""

import struct

FRAME = struct.Struct("<HHIQQQ")  # kind, flags, number, a, b, c
MAX_TEXT = 16 << 10
MAX_MEMORY = 1 << 30  # of a response or a call
MAX_PARAMETERS = 64 << 10  # bytes of the parameters of a response

# From the server.
MEMORY, LOAD, INIT, RUN, FINISH, REPLY, PROBE = 1, 2, 3, 4, 5, 6, 7
# From the worker.
LOADED, READY, RAN, FAILED, NEED_MEMORY, LOG, CALL = 16, 17, 18, 19, 20, 21, 22
OPEN_RESPONSES, SEND, OPEN_CALLS, WORKER_CALL, OPEN_PROBE, TRACEBACK = 23, 24, 25, 26, 27, 28

INPUT, OUTPUT = 0, 1  # flags of MEMORY
INPUTS_KEPT = 1  # flag of RAN and FAILED: the model still uses arrays in the input memory
ROWS_JOINED, RETRY_APART = 2, 4  # flags of LOADED: the model takes rows joined; a failed batch may be split and run again
LAST_RESPONSE = 1  # flag of SEND and REPLY: no response follows
SENDER_DROPPED = 2  # flag of SEND: the response sender was dropped without a final response

COUNT = struct.Struct("<II")  # number of requests or responses that follow
# Inputs, outputs, length of id, length of parameters, timeout, priority, correlation id, flags, cancelled, length of the correlation name, length of the trace context.
REQUEST = struct.Struct("<IIIIQQQIIII")
CANCELLED = 44  # offset of cancelled in REQUEST
TENSOR = struct.Struct("<IIIIQQ")  # in a request: index, type, dimensions, 0, offset, length; the shape follows
RESPONSE = struct.Struct("<IIII")  # 0: outputs follow, 1: a text follows, 2: sent separately, 3: run it again; error code, number of outputs or length of text, length of parameters
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
F64 = struct.Struct("<d")
SHAPES = [struct.Struct("<%dq" % n) for n in range(65)]  # numpy's maximum is 64 dimensions
OUTPUTS = [struct.Struct("<IIIIQ%dq" % n) for n in range(65)]  # in a response: index, type, dimensions, 0, length, shape


def text(message):
    """Encodes a text, truncated to what fits into a frame."""
    return message.encode("utf-8", "replace")[:MAX_TEXT]


def end_of_text(message):
    """Like text, but keeps the end of a long text."""
    data = message.encode("utf-8", "replace")
    return data if len(data) <= MAX_TEXT else b"[...]\n" + data[6 - MAX_TEXT:]


def aligned(n, to):
    return (n + to - 1) & -to
