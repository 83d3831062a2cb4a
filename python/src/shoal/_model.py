"""The public interface: load and Model."""

from __future__ import annotations

import json
import operator
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Protocol, Union

import numpy
import numpy.typing

from . import _errors, _start, _wire
from ._http import HTTP
from ._local import MAX_TIMEOUT, Target, Array, Call, Local, Outputs

ArrayLike = numpy.typing.ArrayLike


class Tensor(NamedTuple):
    """The name, type and shape of an input or output. A dimension of -1 may have any size."""

    name: str
    datatype: str
    """The type's name in the KServe v2 protocol, such as FP32."""
    shape: tuple[int, ...]


class _Transport(Protocol):
    def describe(self, model: str, version: str, timeout: float) -> dict[str, Any]: ...
    def infer(self, call: Call) -> Outputs: ...
    async def infer_async(self, call: Call) -> Outputs: ...
    def close(self) -> None: ...


class Model:
    """A model of a server, returned by :func:`load`. Threads, asyncio tasks and forked processes may use it concurrently."""

    def __init__(self, transport: _Transport, name: str, version: str, description: dict[str, Any]) -> None:
        self._transport, self.name, self.version = transport, name, version
        self._loaded: dict[str, Any] = {}  # the arguments of load, for pickle
        self.inputs = _tensors(description["inputs"])
        self.outputs = _tensors(description["outputs"])
        self._names = tuple(t.name for t in self.inputs)
        self._single_output = self._target(self.outputs[0].name) if len(self.outputs) == 1 else None

    def __repr__(self) -> str:
        return f"<shoal.Model {self.name}: {', '.join(map(_describe, self.inputs))} -> {', '.join(map(_describe, self.outputs))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self._loaded,)

    def forward(self, *arrays: ArrayLike, output: Optional[str] = None, timeout: Optional[float] = None, priority: int = 0) -> Array:
        """Runs the model with the given inputs, in the order of :attr:`inputs`, and returns its output.

        output selects one of several outputs. timeout is in seconds. priority 1 is the highest, for models with priority levels. A large output is a view
        of memory shared with the server; the memory is reused after the array is deleted.
        """
        call = self._forward(arrays, output, timeout, priority)
        return _one(self._transport.infer(call), call)

    async def forward_async(self, *arrays: ArrayLike, output: Optional[str] = None, timeout: Optional[float] = None, priority: int = 0) -> Array:
        """Like :meth:`forward`, for asyncio. Cancelling the task cancels the request over the local socket; over HTTP the server still runs it."""
        call = self._forward(arrays, output, timeout, priority)
        return _one(await self._transport.infer_async(call), call)

    def run(
        self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] = (), *, timeout: Optional[float] = None, priority: int = 0
    ) -> dict[str, Array]:
        """Runs the model with inputs by name, and returns the outputs by name: all, or only the given ones."""
        return self._transport.infer(self._run(inputs, outputs, timeout, priority))

    async def run_async(
        self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] = (), *, timeout: Optional[float] = None, priority: int = 0
    ) -> dict[str, Array]:
        """Like :meth:`run`, for asyncio."""
        return await self._transport.infer_async(self._run(inputs, outputs, timeout, priority))

    def close(self) -> None:
        """Closes the idle connections to the server, which other models of the same server share. They are reopened when needed."""
        self._transport.close()

    def _forward(self, arrays: tuple[ArrayLike, ...], output: Optional[str], timeout: Optional[float], priority: int) -> Call:
        if len(arrays) != len(self.inputs):
            raise _errors.InvalidError(f"model {self.name}: found {len(arrays)} arrays, expected {len(self.inputs)}: {', '.join(self._names)}")
        target = self._single_output if output is None else self._target(output)
        if target is None:
            names = ", ".join(t.name for t in self.outputs)
            raise _errors.InvalidError(f"model {self.name}: found {len(self.outputs)} outputs, expected one; name one of {names} as output, or use run")
        return _call(target, [a if isinstance(a, numpy.ndarray) else _array(a, t) for a, t in zip(arrays, self.inputs)], timeout, priority)

    def _target(self, *outputs: str) -> Target:
        return Target(self.name, self.version, self._names, outputs)

    def _run(self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str], timeout: Optional[float], priority: int) -> Call:
        known = {t.name: t for t in self.inputs}
        arrays = [_array(a, known.get(name)) for name, a in inputs.items()]
        return _call(Target(self.name, self.version, tuple(inputs), tuple(outputs)), arrays, timeout, priority)


def _call(target: Target, arrays: list[Array], timeout: Optional[float], priority: int) -> Call:
    if timeout is not None and not timeout <= MAX_TIMEOUT:  # nan is not
        raise _errors.InvalidError(f"timeout: found {timeout}, expected at most {MAX_TIMEOUT} seconds, or None")
    level = operator.index(priority) if hasattr(priority, "__index__") else -1
    if not 0 <= level < 1 << 64:
        raise _errors.InvalidError(f"priority: found {priority!r}, expected an integer of at least 0")
    return Call(target, arrays, None if timeout is None else max(timeout, 0), level)


def _array(value: ArrayLike, tensor: Optional[Tensor]) -> Array:
    """Returns arrays unchanged, and converts lists and numbers to the type that the model takes."""
    if isinstance(value, numpy.ndarray):
        return value
    dtype = _wire.DTYPES.get(_wire.NAMES.index(tensor.datatype)) if tensor else None
    try:
        if tensor and tensor.datatype == "BYTES":
            texts = numpy.asarray(value, object)  # numpy's own types for strings drop zeros at the end
            if all(isinstance(text, (str, bytes)) for text in texts.flat):
                return texts
        array = numpy.asarray(value, dtype)
        if dtype is not None and dtype.kind in "biu":
            _check_integers(array, value)
        return array
    except (TypeError, ValueError, OverflowError) as e:
        raise _errors.InvalidError(f"found {type(value).__name__}, expected an array: {e}") from e


def _check_integers(array: Array, value: ArrayLike) -> None:
    """Raises ValueError if numpy changed numbers of value when it made an array of integers of them. Which of these it refuses itself depends on its version."""
    given = numpy.asarray(value)
    # A list with 2**63 and 0 becomes an array of floats, too.
    if given.dtype.kind == "f" and any(isinstance(one, (float, numpy.floating)) for one in numpy.asarray(value, object).flat):
        raise ValueError(f"floating-point numbers, and not {array.dtype}")
    if given.dtype.kind in "iu" and array.dtype.kind in "iu" and (given != array).any():
        raise ValueError(f"numbers that {array.dtype} does not have")


def _one(outputs: Outputs, call: Call) -> Array:
    name = call.target.outputs[0]
    found = outputs.get(name)
    if found is None:
        raise _errors.InvalidError(f"found no output {name} in the response, which has {', '.join(outputs) or 'none'}")
    return found


def _tensors(described: Optional[list[dict[str, Any]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t["name"], t["datatype"], tuple(t["shape"])) for t in described or ())


def _describe(t: Tensor) -> str:
    return f"{t.name} {t.datatype}{list(t.shape)}"


_lock = threading.Lock()
_locals: dict[str, Local] = {}  # by the path of the socket; guarded by _lock, which is new after a fork


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _local(path: str, server: Optional[_start.Server] = None) -> Local:
    with _lock:
        if path not in _locals:
            _locals[path] = Local(path, server.connect if server else None)
        return _locals[path]


def load(
    name: Union[str, os.PathLike[str]],
    *,
    repository: Union[str, os.PathLike[str], None] = None,
    url: Optional[str] = None,
    token: Optional[str] = None,
    ca: Union[str, os.PathLike[str], None] = None,
    cert: Optional[tuple[str, str]] = None,
    version: str = "",
    linger: float = 60,
    timeout: float = 120,
    max_batch_size: Optional[int] = None,
    max_delay: Optional[float] = None,
    instances: Optional[int] = None,
) -> Model:
    """Returns a model, given its name or the path of its file.

    With url, such as http://host:8000 or unix:/path/of/a/socket, it is a model of that server. token is an API key, or a token of
    an issuer that the server accepts; the variable SHOAL_TOKEN may have it instead. ca is a file with the authorities to trust instead of the system's,
    and cert the files of the client's certificate and its key.

    Otherwise the model runs on this machine, in a server that all processes of this user share. If no such server is running, load starts one: for the
    file, such as resnet50.onnx, or for the repository, a directory of models, which the variable SHOAL_MODEL_REPOSITORY may name instead. The server
    exits once no process has been connected for linger seconds. Without a file and a repository, load uses the server that was started with
    --local-socket auto.

    It returns when the model is loaded, and fails after timeout seconds.

    max_batch_size (rows), max_delay (seconds for which a request may wait for others) and instances configure the server of a file. What is not given is
    measured. Processes that give the same values share a server.
    """
    config = _config(max_batch_size, max_delay, instances)
    given = os.fspath(name)
    model = given
    transport: Optional[_Transport] = None
    server: Optional[_start.Server] = None
    source = repository or os.environ.get("SHOAL_MODEL_REPOSITORY")
    if url is not None and url.startswith("unix:"):
        transport = _local(url.removeprefix("unix:"))
    elif url is not None:
        transport = HTTP(url, token or os.environ.get("SHOAL_TOKEN"), None if ca is None else os.fspath(ca), cert)
    elif repository is None and (os.sep in given or pathlib.Path(given).suffix in _FILES):
        model, server = pathlib.Path(given).stem, _start.Server(given, linger, timeout, config)
    elif source is not None:
        server = _start.Server(os.fspath(source), linger, timeout)
    if config and (server is None or not server.config):
        raise _errors.InvalidError(
            f"model {given}: max_batch_size, max_delay and instances configure the server of a file; for a model of a repository or a running server, "
            "set max_batch_size, dynamic_batching and instance_group in its config.pbtxt"
        )
    if server is not None:
        transport = _local(server.path, server)
    if transport is None:
        path = _start.running()
        if not os.path.exists(path):
            raise _errors.NotFoundError(
                f"model {given}: found no server at {path}, expected one, or the path of a file, or a repository; "
                f'try shoal.load("{given}", repository="models"), or start "shoal serve models --local-socket auto"'
            )
        transport = _local(path)
    found = Model(transport, model, version, transport.describe(model, version, timeout))
    found._loaded = {"name": given, "repository": repository, "url": url, "token": token, "ca": ca, "cert": cert, "version": version, "linger": linger, "timeout": timeout,
                     "max_batch_size": max_batch_size, "max_delay": max_delay, "instances": instances}  # fmt: skip
    return found


def _config(max_batch_size: Optional[int], max_delay: Optional[float], instances: Optional[int]) -> str:
    """Returns the configuration of a file as JSON, or "" if nothing is configured."""
    config: dict[str, Any] = {}
    if max_batch_size is not None:
        config["max_batch_size"] = _at_least("max_batch_size", max_batch_size, 0)
    if max_delay is not None:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": round(_at_least("max_delay", max_delay, 0) * 1e6)}
    if instances is not None:
        config["instance_group"] = [{"count": _at_least("instances", instances, 1)}]
    return json.dumps(config) if config else ""


def _at_least(name: str, value: float, least: int) -> float:
    if not least <= value < float("inf") or (name != "max_delay" and value != int(value)):
        raise _errors.InvalidError(f"{name}: found {value}, expected a number of at least {least}")
    return value


def _load(arguments: dict[str, Any]) -> Model:
    return load(**arguments)


# File name extensions of models.
_FILES = {".onnx", ".joblib", ".pkl", ".ubj", ".bst", ".json", ".pt"}
