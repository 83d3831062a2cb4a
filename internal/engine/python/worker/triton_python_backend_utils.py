"""The module that a Triton model.py imports, with Triton's classes and functions."""

import copy
import json
import struct

import shoal_connections as connections
import shoal_wire as wire
from shoal_numpy import np

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

_BYTES = 13
_BF16 = 14
_NAMES = ["", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16"]
_NUMPY = [None] * len(_NAMES) if np is None else [
    None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.object_, None]
_DTYPES = [None if t is None else np.dtype(t) for t in _NUMPY]
_CODES = {d: code for code, d in enumerate(_DTYPES) if d is not None}


class TritonModelException(Exception):
    """Raised by this module for invalid arguments and failed operations."""


class TritonError:
    """The error of one request."""

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
    """A named array. Inputs are views of the input memory."""

    # String inputs are decoded on demand: until then _array is None, and _place is the shape, offset and length in _memory. The same holds for types
    # that numpy lacks.
    __slots__ = ("_name", "_array", "_code", "_place", "_memory")

    def __init__(self, name, array):
        if not isinstance(array, np.ndarray):
            raise TypeError("Tensor %r: found %s, expected a numpy array" % (name, type(array).__name__))
        code = _CODES.get(array.dtype)
        if code is None:
            code = _code_of(name, array.dtype)
            if code != _BYTES:
                array = array.astype(_DTYPES[code])  # opposite byte order
        self._name, self._array, self._code = name, array, code

    @classmethod
    def _view(cls, name, code, place, memory):
        t = cls.__new__(cls)
        t._name, t._array, t._code, t._place, t._memory = name, _array_of(code, place, memory), code, place, memory
        return t

    def name(self):
        return self._name

    def triton_dtype(self):
        return self._code

    def shape(self):
        return list(self._place[0] if self._array is None else self._array.shape)

    def is_cpu(self):
        return True

    def as_numpy(self):
        if self._array is None:
            shape, offset, length = self._place
            if self._code == _BF16:
                raise TritonModelException("Tensor %r: numpy has no type for BF16" % self._name)
            self._array = deserialize_bytes_tensor(memoryview(self._memory)[offset:offset + length]).reshape(shape)
        return self._array

    def _elements(self):
        """Returns the elements of a string tensor that was not decoded yet, as a list. It needs no numpy."""
        _, offset, length = self._place
        return _elements(memoryview(self._memory)[offset:offset + length])

    @staticmethod
    def from_dlpack(name, source):
        """Creates a tensor from another library's memory, and shares the memory if possible."""
        if hasattr(source, "__dlpack_device__") and source.__dlpack_device__()[0] not in (1, 3):
            raise TritonModelException("Tensor %r: found memory of another device, expected the CPU's" % name)
        return Tensor(name, np.from_dlpack(source if hasattr(source, "__dlpack__") else _Capsule(source)))

    def to_dlpack(self):
        return self.as_numpy().__dlpack__()

    def __dlpack__(self, *args, **kwargs):
        return self.as_numpy().__dlpack__(*args, **kwargs)

    def __dlpack_device__(self):
        return 1, 0  # kDLCPU

    def _content(self):
        """Returns a contiguous array of the tensor's bytes, and its shape."""
        array = self._array
        if array is None:  # never decoded: the bytes are forwarded as they are
            shape, offset, length = self._place
            return self._memory[offset:offset + length], shape
        if self._code == _BYTES:
            return np.frombuffer(serialize_byte_tensor(array), dtype=np.uint8), array.shape
        return array, array.shape


def _array_of(code, place, memory):
    """Returns an array that is a view of memory, or None for strings, which must be decoded, and for types that numpy lacks."""
    if code in (_BYTES, _BF16):
        return None
    shape, offset, _ = place
    return np.ndarray(shape, _DTYPES[code], memory, offset)


class _Capsule:
    """Wraps a DLPack capsule in the object that numpy.from_dlpack expects."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


class PreferredMemory:
    """The preferred memory of the outputs. Outputs are always in CPU memory."""

    def __init__(self, preferred_memory_type, preferred_device_id=0):
        self.preferred_memory_type, self.preferred_device_id = preferred_memory_type, preferred_device_id


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


class _Properties:
    """The properties of a request besides its inputs. It is immutable, and shared by requests with equal properties."""

    __slots__ = ("id", "outputs", "parameters", "timeout", "priority", "correlation", "flags", "model", "version", "trace")

    def __init__(self, id, outputs, parameters, timeout, priority, correlation, flags, model, version, trace=None):
        self.id, self.outputs, self.parameters, self.timeout, self.priority = id, outputs, parameters, timeout, priority
        self.correlation, self.flags, self.model, self.version, self.trace = correlation, flags, model, version, trace


class InferenceTrace:
    """The trace of a request. A model passes it to the requests that it sends, so that they belong to the same trace."""

    __slots__ = ("_context",)

    def __init__(self, context=""):
        self._context = context

    def get_context(self):
        """Returns the context of the trace as JSON, as {"traceparent": "..."}; None if there is none."""
        return self._context or None


class InferenceRequest:
    """A request of a batch, or one that a model sends."""

    # Requests of a batch are created by the worker: _batch is the connection, the batch's number and its memory; _cancelled is an offset in that memory.
    # _again is set only for models with iterative sequences.
    __slots__ = ("_inputs", "_properties", "_batch", "_index", "_cancelled", "_sender", "_again")

    _iterative = False  # set by the worker: the model may have requests run again

    def __init__(self, request_id="", correlation_id=0, inputs=(), requested_output_names=(), model_name="", model_version=-1, flags=0,
                 timeout=0, preferred_memory=None, trace=None, parameters=None, priority=0):
        self._inputs, self._batch, self._sender = list(inputs), None, None
        self._properties = _Properties(request_id, list(requested_output_names), json.dumps(parameters or {}), timeout, priority, correlation_id, flags, model_name,
                           model_version, trace)

    def inputs(self):
        return self._inputs

    def request_id(self):
        return self._properties.id

    def correlation_id(self):
        return self._properties.correlation

    def requested_output_names(self):
        return set(self._properties.outputs)

    def model_name(self):
        return self._properties.model

    def model_version(self):
        return self._properties.version

    def flags(self):
        return self._properties.flags

    def set_flags(self, flags):
        self._properties = copy.copy(self._properties)
        self._properties.flags = flags

    def timeout(self):
        """Returns the timeout in microseconds; 0 if the client set none."""
        return self._properties.timeout

    def priority(self):
        return self._properties.priority

    def parameters(self):
        """Returns the parameters as a JSON string."""
        return self._properties.parameters

    def trace(self):
        return self._properties.trace

    def set_release_flags(self, flags):
        """With TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, the server runs the request again in a later batch."""
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException("found release flags %r, expected TRITONSERVER_REQUEST_RELEASE_ALL or TRITONSERVER_REQUEST_RELEASE_RESCHEDULE" % (flags,))
        again = flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
        if again and (not self._iterative or self._batch is None):
            raise TritonModelException("only requests that are passed to execute of a model with sequence_batching { iterative_sequence: true } can be rescheduled")
        if self._iterative:
            self._again = again

    def is_cancelled(self):
        if self._batch is None:
            return False
        _, _, memory = self._batch
        return bool(memory[self._cancelled]) or self._sender is not None and self._sender.is_cancelled()

    def get_response_sender(self):
        """Returns the response sender of this request, always the same one. It may be used after execute has returned."""
        if self._sender is None:
            if self._batch is None:
                raise TritonModelException("found a request that the model created, expected one passed to execute: only those have a response sender")
            connection, number, _ = self._batch
            self._sender = InferenceResponseSender(connections.ResponseConnection(connection, number, self._index), self._properties.outputs)
        return self._sender

    def exec(self, decoupled=False):
        """Sends the request to another model and waits for the response. With decoupled, returns an iterator over all responses."""
        answers = ResponseIterator(self._begin(decoupled))
        return answers if decoupled else answers._single()

    def async_exec(self, decoupled=False):
        """Like exec, but awaitable. The request is sent immediately."""
        import asyncio  # slow to import, and few models need it

        answers = _awaited(ResponseIterator(self._begin(decoupled)), decoupled)
        try:
            return asyncio.get_running_loop().create_task(answers)
        except RuntimeError:  # no loop runs here: it is awaited later
            return answers

    def _begin(self, decoupled):
        p = self._properties
        document = {
            "model": _text("model_name", p.model), "version": _integer("model_version", p.version, -2**63, 2**63), "id": _text("request_id", p.id),
            "outputs": [_text("requested_output_names", name) for name in p.outputs], "timeout": _integer("timeout", p.timeout, 0, 2**64),
            "priority": _integer("priority", p.priority, 0, 2**64), "flags": _integer("flags", p.flags, 0, 2**32), "many": bool(decoupled),
            "parameters": json.loads(p.parameters),
        }
        if isinstance(p.correlation, str):
            document["correlation_name"] = p.correlation
        else:
            document["correlation"] = _integer("correlation_id", p.correlation, 0, 2**64)
        if p.trace is not None and p.trace.get_context():
            context = json.loads(p.trace.get_context())
            document["traceparent"], document["tracestate"] = context.get("traceparent", ""), context.get("tracestate", "")
        return _call(document, self._inputs)


def _integer(name, value, least, end):
    """Returns an argument as an integer that the server can read: at least least, and less than end."""
    n = int(value)
    if not least <= n < end:
        raise TritonModelException("found %s %d, expected a number from %d to %d" % (name, n, least, end - 1))
    return n


def _text(name, value):
    """Returns an argument that must be a string. None means an empty one."""
    if value is not None and not isinstance(value, str):
        raise TypeError("found %s %r, expected a string" % (name, value))
    return value


class ResponseIterator:
    """The responses to a call, in order of arrival."""

    def __init__(self, connection):
        self._connection, self._ended = connection, False

    def __iter__(self):
        return self

    def __next__(self):
        if self._ended:
            raise StopIteration
        received = connections.receive(self._connection, Tensor._view)
        if received is None:
            self.cancel()
            return InferenceResponse(error=TritonError("the server did not answer"))
        document, tensors, last = received
        if last:
            self.cancel()
        error = TritonError(document.get("text", ""), document.get("code", TritonError.INTERNAL)) if document.get("failed") else None
        return InferenceResponse(tensors, error, document.get("parameters"))

    def cancel(self):
        """Closes the connection and discards further responses."""
        self._ended = True
        self._connection.close()

    def _single(self):
        response = next(self)
        self.cancel()
        return response


async def _awaited(answers, decoupled):
    import asyncio  # slow to import, and few models need it

    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(answers._connection, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(answers._connection)
    except BaseException:
        answers.cancel()  # the caller was cancelled
        raise
    return answers if decoupled else answers._single()


class InferenceResponseSender:
    """Sends the responses to one request."""

    def __init__(self, connection, outputs):
        self._connection, self._outputs = connection, outputs

    def send(self, response=None, flags=0):
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response: found flags %r, expected 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL" % (flags,))
        if response is None and not flags:
            raise TritonModelException("Unable to send response: found neither a response nor TRITONSERVER_RESPONSE_COMPLETE_FINAL, expected one of them")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TritonModelException("Unable to send response: found %s, expected an InferenceResponse" % type(response).__name__)
        if not self._send(response, bool(flags)):
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def is_cancelled(self):
        return self._connection.client_left()

    def _send(self, response, last):
        if response is None:
            return self._connection.send(None, (), last)
        if response._error is not None:
            code, text = response._failure()
            return self._connection.send({"failed": True, "code": code, "text": text.decode("utf-8", "ignore")}, (), last)
        document = {"parameters": response._parameters} if response._parameters else {}
        outputs = [t for t in response._tensors if t._name in self._outputs]
        _check_outputs(outputs)
        return self._connection.send(document, outputs, last)

    def _fail(self, text):
        """Sends an error as the final response, unless that was sent."""
        self._send(InferenceResponse(error=TritonError(text)), True)

    def _send_last(self, response):
        """Sends a response that execute returned, unless the final response was sent."""
        self._send(response, True)


class InferenceResponse:
    """The response to one request: tensors, or an error."""

    __slots__ = ("_tensors", "_error", "_parameters")

    def __init__(self, output_tensors=(), error=None, parameters=None):
        self._tensors, self._error, self._parameters = [*output_tensors], error, parameters

    def output_tensors(self):
        return self._tensors

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error

    def parameters(self):
        return json.dumps(self._parameters or {}, allow_nan=False)

    def _failure(self):
        """Returns the code and the message of the error."""
        code = self._error.code() if isinstance(self._error, TritonError) else TritonError.INTERNAL
        if not 0 <= code <= TritonError.CANCELLED:
            code = TritonError.INTERNAL
        return code, wire.text(str(self._error))


def _check_outputs(tensors):
    """Raises an error if two outputs of a response have the same name."""
    seen = set()
    for t in tensors:
        if t._name in seen:
            raise TritonModelException("found the output %r twice in a response, expected each output once" % t._name)
        seen.add(t._name)


_begin_call = None  # set by the worker: sends a call to the server
_worker_calls = None  # set by the worker: the connection for metrics and readiness queries


def _call(document, tensors=()):
    """Sends a call, and returns the connection on which the responses arrive."""
    if _begin_call is None:
        raise TritonModelException("this process has no server: a model can call other models only while a server runs it")
    return _begin_call(document, tensors)


def _worker_call(document):
    if _worker_calls is None:
        raise TritonModelException("this process has no server: metrics and queries about models work only while a server runs the model")
    value, error = _worker_calls.call(document)
    if error:
        raise TritonModelException(error)
    return value


_model_dir = ""  # set before the model is imported


def get_model_dir():
    """Returns the directory of the model's version."""
    return _model_dir


def is_model_ready(model_name, model_version=""):
    return bool(_worker_call({"do": "ready", "name": model_name, "version": str(model_version)}))


def load_model(model_name, config="", files=None):
    """Loads or reloads a model from the repository, or from files with names such as 'file:1/model.py', and waits until it is ready. The server must
    run with explicit model control."""
    contents = [Tensor(name[len("file:"):] if name.startswith("file:") else name, np.frombuffer(text, np.uint8)) for name, text in (files or {}).items()]
    _control({"do": "load", "model": _text("model_name", model_name), "config": _text("config", config)}, contents)


def unload_model(model_name, unload_dependents=False):
    """Unloads a model after its in-flight requests. The members of an ensemble stay loaded."""
    _control({"do": "unload", "model": _text("model_name", model_name)})


def _control(document, tensors=()):
    answer = ResponseIterator(_call(document, tensors))._single()
    if answer.has_error():
        raise TritonModelException(answer.error().message())


class MetricFamily:
    """A family of custom metrics. It appears on the server's metrics endpoint, and is shared by all models and instances."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name, description, kind):
        self._name, self._kind = name, kind
        self._call("family", help=description, kind=kind)

    def Metric(self, labels=None, buckets=None):
        return Metric(self, labels, buckets)

    def _call(self, do, **arguments):
        return _worker_call(dict(arguments, do=do, name=self._name))


class Metric:
    """A counter, a gauge or a histogram."""

    def __init__(self, family, labels=None, buckets=None):
        self._family, self._labels = family, {str(k): str(v) for k, v in (labels or {}).items()}
        family._call("metric", labels=self._labels, buckets=[float(b) for b in buckets or ()])

    def increment(self, value):
        self._do("increment", value)

    def set(self, value):
        self._do("set", value)

    def observe(self, value):
        self._do("observe", value)

    def value(self):
        return self._do("value", 0)

    def _do(self, operation, value):
        return self._family._call(operation, labels=self._labels, value=float(value))


class Logger:
    """Writes to the server's log, under the model's name."""

    ERROR, WARNING, INFO, VERBOSE = range(4)

    _send = None  # set by the worker: takes a level and a message
    _send_traceback = None  # set by the worker: takes a traceback

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
    """The configuration that auto_complete_config receives, completes and returns."""

    def __init__(self, config):
        self._config = config

    def as_dict(self):
        return self._config

    def set_max_batch_size(self, n):
        configured = self._config.get("max_batch_size", 0)
        if configured > n:
            raise ValueError("max_batch_size: found %d in the model's configuration, expected at most %d, which auto_complete_config set" % (configured, n))
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


def _compare(kind, have, completed):
    for key in ("data_type", "dims"):
        empty = not have.get(key) or have[key] == "TYPE_INVALID"
        if empty:
            have[key] = completed[key]
        elif have[key] != completed[key]:
            raise ValueError("%s %r: found %s %s in the model's configuration, expected %s, which auto_complete_config set"
                             % (kind, completed["name"], key, have[key], completed[key]))


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
    """Serializes the elements of an array, each prefixed with its length."""
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
    """The inverse of serialize_byte_tensor. Returns a one-dimensional array."""
    elements = _elements(data)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def _elements(data):
    """Returns the elements of a serialized array as a list of bytes objects."""
    elements, at, end = [], 0, len(data)
    while at < end:
        length, = wire.U32.unpack_from(data, at)
        at += 4
        if length > end - at:
            raise TritonModelException("found an element of %d bytes with %d bytes left" % (length, end - at))
        elements.append(bytes(data[at:at + length]))
        at += length
    return elements
