"""The module that a Triton model.py imports, under Triton's name and with its classes and functions."""

import json
import struct

import numpy as np

import shoal_wire as wire

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

_BYTES = 13
_BF16 = 14
_NAMES = ["", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16"]
_NUMPY = [None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64,
          np.float16, np.float32, np.float64, np.object_, None]
_DTYPES = [None if t is None else np.dtype(t) for t in _NUMPY]
_CODES = {d: code for code, d in enumerate(_DTYPES) if d is not None}


class TritonModelException(Exception):
    """What this module raises when it is asked for what cannot be done."""


class TritonError:
    """Why one request failed."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    __slots__ = ("_message", "_code")

    def __init__(self, message, code=INTERNAL):
        self._message, self._code = str(message), int(code)

    def message(self):
        return self._message

    def code(self):
        return self._code

    def __str__(self):
        return self._message


class Tensor:
    """A named array. Inputs are views of memory that the server wrote; an array is made of it when it is asked for."""

    __slots__ = ("_name", "_array", "_code", "_shape", "_memory", "_offset", "_length")

    def __init__(self, name, array):
        if not isinstance(array, np.ndarray):
            raise TypeError("Tensor %r: found %s, expected a numpy array" % (name, type(array).__name__))
        code = _CODES.get(array.dtype)
        if code is None:
            code = _code_of(name, array.dtype)
            if code != _BYTES:
                array = array.astype(_DTYPES[code])  # it has the other byte order
        self._name, self._array, self._code = name, array, code

    @classmethod
    def _view(cls, name, code, shape, memory, offset, length):
        t = cls.__new__(cls)
        t._name, t._array, t._code, t._shape = name, None, code, shape
        t._memory, t._offset, t._length = memory, offset, length
        return t

    def name(self):
        return self._name

    def triton_dtype(self):
        return self._code

    def shape(self):
        return list(self._shape if self._array is None else self._array.shape)

    def is_cpu(self):
        return True

    def as_numpy(self):
        if self._array is None:
            if self._code == _BYTES:
                view = memoryview(self._memory)[self._offset:self._offset + self._length]
                self._array = deserialize_bytes_tensor(view).reshape(self._shape)
            elif self._code == _BF16:
                raise TritonModelException("Tensor %r: numpy has no type for BF16" % self._name)
            else:
                self._array = np.ndarray(self._shape, _DTYPES[self._code], self._memory, self._offset)
        return self._array


def _code_of(name, dtype):
    code = _CODES.get(dtype)
    if code is not None:
        return code
    if dtype.kind in "SU":
        return _BYTES
    code = _CODES.get(dtype.newbyteorder("="))
    if code is None:
        raise TritonModelException("Tensor %r: found an array of %s, expected one of a type that the protocol has" % (name, dtype))
    return code


class InferenceRequest:
    """One request of a batch."""

    __slots__ = ("_inputs", "_id", "_outputs", "_parameters", "_timeout", "_priority", "_correlation", "_flags", "_model", "_version", "_cancelled")

    def __init__(self, request_id="", correlation_id=0, inputs=(), requested_output_names=(), model_name="", model_version=-1, flags=0,
                 timeout=0, preferred_memory=None, trace=None, parameters=None):
        self._inputs, self._id, self._outputs = list(inputs), request_id, list(requested_output_names)
        self._parameters = json.dumps(parameters or {})
        self._timeout, self._priority, self._correlation, self._flags = timeout, 0, correlation_id, flags
        self._model, self._version = model_name, model_version
        self._cancelled = None  # the memory that says so, and where

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._id

    def correlation_id(self):
        return self._correlation

    def requested_output_names(self):
        return set(self._outputs)

    def model_name(self):
        return self._model

    def model_version(self):
        return self._version

    def flags(self):
        return self._flags

    def set_flags(self, flags):
        self._flags = flags

    def timeout(self):
        """Microseconds; 0 means that the client named no time."""
        return self._timeout

    def priority(self):
        return self._priority

    def parameters(self):
        """A JSON object, as a string."""
        return self._parameters

    def is_cancelled(self):
        if self._cancelled is None:
            return False
        memory, at = self._cancelled
        return bool(memory[at])


class InferenceResponse:
    """The answer to one request: tensors, or an error."""

    __slots__ = ("_tensors", "_error", "_parameters")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        self._tensors, self._error, self._parameters = list(output_tensors), error, parameters

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return json.dumps(self._parameters or {})


class Logger:
    """Writes to the server's log, under the model's name."""

    ERROR, WARNING, INFO, VERBOSE = range(4)

    _send = None  # set by the worker: takes a level and a text

    @classmethod
    def log(cls, message, level=INFO):
        if Logger._send is not None:
            Logger._send(level, str(message))

    @classmethod
    def log_error(cls, message):
        cls.log(message, cls.ERROR)

    @classmethod
    def log_warn(cls, message):
        cls.log(message, cls.WARNING)

    @classmethod
    def log_info(cls, message):
        cls.log(message, cls.INFO)

    @classmethod
    def log_verbose(cls, message):
        cls.log(message, cls.VERBOSE)


class ModelConfig:
    """The configuration that auto_complete_config is given, and returns with what the model adds to it."""

    def __init__(self, config):
        self._config = config

    def as_dict(self):
        return self._config

    def set_max_batch_size(self, n):
        written = self._config.get("max_batch_size", 0)
        if written > n:
            raise ValueError("max_batch_size: found %d in the model's configuration, expected at most %d, which auto_complete_config says" % (written, n))
        self._config["max_batch_size"] = n

    def set_dynamic_batching(self):
        if not any(key in self._config for key in ("dynamic_batching", "sequence_batching", "ensemble_scheduling")):
            self._config["dynamic_batching"] = {}

    def set_model_transaction_policy(self, policy):
        unknown = set(policy) - {"decoupled"}
        if unknown:
            raise ValueError("model transaction policy: found %s, expected only 'decoupled'" % sorted(unknown))
        self._config.setdefault("model_transaction_policy", {}).setdefault("decoupled", bool(policy.get("decoupled", False)))

    def add_input(self, tensor):
        self._add("input", tensor, {"name", "data_type", "dims", "optional"})

    def add_output(self, tensor):
        self._add("output", tensor, {"name", "data_type", "dims"})

    def _add(self, kind, tensor, known):
        missing, unknown = {"name", "data_type", "dims"} - set(tensor), set(tensor) - known
        if missing or unknown:
            raise ValueError("%s %r: found %s, expected %s" % (kind, tensor.get("name", ""), sorted(tensor), sorted(known)))
        for have in self._config.setdefault(kind, []):
            if have["name"] == tensor["name"]:
                _compare(kind, have, tensor)
                return
        self._config[kind].append(dict(tensor))


def _compare(kind, have, told):
    for key in ("data_type", "dims"):
        empty = not have.get(key) or have[key] == "TYPE_INVALID"
        if empty:
            have[key] = told[key]
        elif have[key] != told[key]:
            raise ValueError("%s %r: found %s %s in the model's configuration, expected %s, which auto_complete_config says"
                             % (kind, told["name"], key, have[key], told[key]))


def get_input_tensor_by_name(request, name):
    for t in request._inputs:
        if t._name == name:
            return t
    return None


def get_output_tensor_by_name(response, name):
    for t in response._tensors:
        if t._name == name:
            return t
    return None


def get_input_config_by_name(model_config, name):
    return _by_name(model_config.get("input", []), name)


def get_output_config_by_name(model_config, name):
    return _by_name(model_config.get("output", []), name)


def _by_name(entries, name):
    for entry in entries:
        if entry["name"] == name:
            return entry
    return None


def using_decoupled_model_transaction_policy(model_config):
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(code):
    t = _NUMPY[code] if 0 < code < len(_NUMPY) else None
    if t is None:
        raise TritonModelException("found data type %s, expected one that numpy has" % code)
    return t


def triton_string_to_numpy(name):
    bare = name[len("TYPE_"):] if name.startswith("TYPE_") else name
    if bare not in _NAMES[1:]:
        raise KeyError("found data type %r, expected one such as TYPE_FP32" % name)
    return triton_to_numpy_type(_NAMES.index(bare))


def numpy_to_triton_type(dtype):
    return _code_of("", np.dtype(dtype))


def serialize_byte_tensor(array):
    """The elements of an array one behind the other, each with its length before it; None if there are none to serialise."""
    if array.dtype.kind not in "OSU":
        raise TritonModelException("found an array of %s, expected one of objects or strings" % array.dtype)
    parts = []
    for element in array.ravel(order="C"):
        if isinstance(element, (bytes, bytearray)):
            raw = bytes(element)
        else:
            raw = str(element).encode("utf-8")
        parts.append(struct.pack("<I", len(raw)))
        parts.append(raw)
    return b"".join(parts)


def deserialize_bytes_tensor(data):
    """The opposite of serialize_byte_tensor: an array of one dimension."""
    elements, at, end = [], 0, len(data)
    while at < end:
        length, = wire.U32.unpack_from(data, at)
        at += 4
        if length > end - at:
            raise TritonModelException("found an element of %d bytes with %d bytes left" % (length, end - at))
        elements.append(bytes(data[at:at + length]))
        at += length
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
