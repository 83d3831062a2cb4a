"""The protocol between a local client and the server. internal/kserve/kservelocal/wire.go defines the same and explains it.

A frame is 32 bytes, followed by a table, a text or a document. Tensors are in shared memory.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy

from ._errors import InvalidError

PROTOCOL = 1
MAX_FRAME = 65536
ALIGNMENT = 64
CODES = 13

# From the client.
HELLO = 1
MEMORY = 2
FREE = 3
INFER = 4
CANCEL = 5
MODEL = 6
# From the server.
WELCOME = 16
ANSWER = 17
FAILED = 18
DESCRIPTION = 19

NO_OTHER_FRAME = 1  # flag of INFER: the client sends no other frame before the response
WITH_MEMORY = 1  # flag of ANSWER: the outputs are in the memory that came with it
STILL_LOADING = 1  # flag of FAILED: the server is still loading its models

FRAME = struct.Struct("<HHIQQQ")  # kind, flags, number, a, b, c
INFERENCE = struct.Struct("<HHIQQQQQ")  # an INFER frame, with timeout in µs and priority; the table follows
TIMES = struct.Struct("<QQ")
U32 = struct.Struct("<I")
PLACE = struct.Struct("<IQQI")  # type, offset, length, dimensions; the name precedes it, the shape follows

NAMES = ("", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16")
BYTES, BF16 = 13, 14

DTYPES: dict[int, numpy.dtype[Any]] = {
    code: numpy.dtype(name)
    for code, name in enumerate(
        ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"), start=1
    )
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def aligned(n: int) -> int:
    return (n + ALIGNMENT - 1) & -ALIGNMENT


def type_of(array: numpy.ndarray[Any, Any]) -> int:
    """Returns the type number for an array, or 0 if the protocol has no such type."""
    code = _CODES.get(array.dtype)
    if code is not None:
        return code
    if array.dtype.kind in "OSU":
        return BYTES
    if array.dtype.name == "bfloat16":
        return BF16
    return _CODES.get(array.dtype.newbyteorder("="), 0)


def codes_of(arrays: Sequence[numpy.ndarray[Any, Any]]) -> list[int]:
    """Returns the type numbers of arrays. Raises InvalidError for a type that no model takes."""
    codes = [type_of(one) for one in arrays]
    if 0 in codes:
        raise InvalidError(f"found an array of {arrays[codes.index(0)].dtype}, expected numbers, booleans or strings")
    return codes


def to_strings(array: numpy.ndarray[Any, Any]) -> bytes:
    """Encodes the elements of an array of strings or bytes, each preceded by its length."""
    parts = []
    for element in array.flat:
        b = element if isinstance(element, bytes) else encode(str(element))
        parts += [U32.pack(len(b)), b]
    return b"".join(parts)


def from_strings(data: memoryview, shape: Sequence[int]) -> numpy.ndarray[Any, Any]:
    """The inverse of to_strings. Returns an array of bytes objects."""
    elements, at = [], 0
    while at < len(data):
        (n,) = U32.unpack_from(data, at)
        elements.append(bytes(data[at + 4 : at + 4 + n]))
        at += 4 + n
    array = numpy.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def from_bytes(code: int, shape: Sequence[int], data: memoryview) -> numpy.ndarray[Any, Any]:
    """Decodes the data of a tensor into a new array. BF16, which numpy lacks, becomes FP32."""
    if code == BYTES:
        return from_strings(data, shape)
    if code == BF16:
        upper = numpy.frombuffer(data, dtype="<u2").astype(numpy.uint32)
        numbers: numpy.ndarray[Any, Any] = (upper << 16).view(numpy.float32).reshape(shape)
        return numbers
    if len(data) == 0:
        return numpy.empty(0, DTYPES[code]).reshape(shape)
    array: numpy.ndarray[Any, Any] = numpy.frombuffer(data, dtype=DTYPES[code]).reshape(shape).copy()
    return array


def encode(s: str) -> bytes:
    """Returns a string as UTF-8. Raises InvalidError for half of a surrogate pair, which os.fsdecode makes of bytes that are not UTF-8."""
    try:
        return s.encode()
    except UnicodeEncodeError as e:
        raise InvalidError(f"found the string {s[:100]!a}, expected one that UTF-8 can express: {e.reason}") from e


def text(s: str) -> bytes:
    b = encode(s)
    return U32.pack(len(b)) + b


# Name, type, offset, length and shape.
Output = tuple[str, int, int, int, tuple[int, ...]]


def read_outputs(table: bytes) -> list[Output]:
    """Decodes the table of an ANSWER frame."""
    outputs: list[Output] = []
    (count,), at = U32.unpack_from(table), 4
    for _ in range(count):
        (n,) = U32.unpack_from(table, at)
        name = table[at + 4 : at + 4 + n].decode()
        at += 4 + n
        code, offset, length, dims = PLACE.unpack_from(table, at)
        at += PLACE.size
        outputs.append((name, code, offset, length, struct.unpack_from(f"<{dims}q", table, at)))
        at += 8 * dims
    return outputs
