"""What the server and the worker say to each other; wire.go has the same from the other side, and says why.

A frame is 32 bytes, and after them a text, if its kind has one. Tables and tensors are in memory that both have mapped: one piece that the server
writes and the worker reads, and one for the other way.
"""

import struct

FRAME = struct.Struct("<HHIQQQ")  # kind, flags, number, a, b, c
MAX_TEXT = 16 << 10

# From the server.
MEMORY, LOAD, INIT, RUN, FINISH, REPLY, PROBE = 1, 2, 3, 4, 5, 6, 7
# From the worker.
LOADED, READY, RAN, FAILED, NEED, LOG, CALL, OPEN, SEND, DESK, ASK, PULSE = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27

INPUT, OUTPUT = 0, 1  # flags of MEMORY
KEPT = 1  # flag of RAN: arrays of the inputs are still in use
JOINED, APART = 2, 4  # flags of LOADED: the model takes rows joined; a batch that failed may be run again in parts
LAST = 1  # flag of SEND and REPLY: no other follows
GONE = 2  # flag of SEND: what sends is gone, and none was the last

COUNT = struct.Struct("<II")  # how many requests or responses follow
# Inputs, outputs, length of id, of parameters, timeout, priority, correlation, flags, cancelled, length of the correlation's name, 0.
REQUEST = struct.Struct("<IIIIQQQIIII")
CANCELLED = 44  # where in it that flag is
TENSOR = struct.Struct("<IIIIQQ")  # of a request: index, type, dimensions, 0, offset, length, and behind it the shape
RESPONSE = struct.Struct("<IIII")  # outputs follow (0), a text (1) or nothing, because it is sent (2); code, how many or how long, length of parameters
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
F64 = struct.Struct("<d")
SHAPES = [struct.Struct("<%dq" % n) for n in range(65)]  # as many dimensions as numpy has
OUTPUTS = [struct.Struct("<IIIIQ%dq" % n) for n in range(65)]  # of a response: index, type, dimensions, 0, length and shape


def text(message):
    """A text as bytes, cut to what fits into a frame."""
    return message.encode("utf-8", "replace")[:MAX_TEXT]


def aligned(n, to):
    return (n + to - 1) & -to
