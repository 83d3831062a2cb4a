"""Models, as a program sees them."""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Protocol, Union

import numpy
import numpy.typing

from . import _errors, _start, _wire
from ._http import HTTP
from ._local import About, Array, Call, Local, Outputs

ArrayLike = numpy.typing.ArrayLike


class Tensor(NamedTuple):
    """What a model takes or gives. A dimension of -1 may have any size; the first one is the rows of a batch, if there is one."""

    name: str
    datatype: str
    """The name that the KServe v2 protocol has for it, such as FP32."""
    shape: tuple[int, ...]


class _Transport(Protocol):
    def describe(self, model: str, timeout: float) -> dict[str, Any]: ...
    def ask(self, call: Call) -> Outputs: ...
    async def ask_async(self, call: Call) -> Outputs: ...
    def close(self) -> None: ...


class Model:
    """A model of a server, which :func:`load` finds. Any number of threads, tasks and forked processes may use it at once."""

    def __init__(self, transport: _Transport, name: str, version: str, description: dict[str, Any]) -> None:
        self._transport, self.name, self.version = transport, name, version
        self._loaded: dict[str, Any] = {}  # the arguments that another process loads it with
        self.inputs = _tensors(description["inputs"])
        self.outputs = _tensors(description["outputs"])
        self._names = tuple(t.name for t in self.inputs)
        self._only = self._about(self.outputs[0].name) if len(self.outputs) == 1 else None

    def __repr__(self) -> str:
        return f"<shoal.Model {self.name}: {', '.join(map(_told, self.inputs))} -> {', '.join(map(_told, self.outputs))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self._loaded,)

    def forward(self, *arrays: ArrayLike, output: Optional[str] = None, timeout: Optional[float] = None, priority: int = 0) -> Array:
        """The model's output for its inputs, in the order of :attr:`inputs`.

        output names one of several outputs. timeout is how many seconds the answer may take, and priority 1 is the highest where a model has
        priorities. A large array that is returned is a view of memory which the next call uses again as soon as the array is gone.
        """
        call = self._forward(arrays, output, timeout, priority)
        return _one(self._transport.ask(call), call)

    async def forward_async(self, *arrays: ArrayLike, output: Optional[str] = None, timeout: Optional[float] = None, priority: int = 0) -> Array:
        """The same for asyncio. A task that is cancelled takes its request back."""
        call = self._forward(arrays, output, timeout, priority)
        return _one(await self._transport.ask_async(call), call)

    def run(
        self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] = (), *, timeout: Optional[float] = None, priority: int = 0
    ) -> dict[str, Array]:
        """The outputs by their names, all unless some are named, for inputs by theirs."""
        return self._transport.ask(self._run(inputs, outputs, timeout, priority))

    async def run_async(
        self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str] = (), *, timeout: Optional[float] = None, priority: int = 0
    ) -> dict[str, Array]:
        """The same for asyncio."""
        return await self._transport.ask_async(self._run(inputs, outputs, timeout, priority))

    def close(self) -> None:
        """Closes the connections to the server that are idle, also for other models of the same server."""
        self._transport.close()

    def _forward(self, arrays: tuple[ArrayLike, ...], output: Optional[str], timeout: Optional[float], priority: int) -> Call:
        if len(arrays) != len(self.inputs):
            raise _errors.InvalidError(f"model {self.name}: found {len(arrays)} arrays, expected {len(self.inputs)}: {', '.join(self._names)}")
        about = self._only if output is None else self._about(output)
        if about is None:
            names = ", ".join(t.name for t in self.outputs)
            raise _errors.InvalidError(f"model {self.name}: found {len(self.outputs)} outputs, expected one; name one of {names} as output, or use run")
        return Call(about, [a if isinstance(a, numpy.ndarray) else _array(a, t) for a, t in zip(arrays, self.inputs)], timeout, priority)

    def _about(self, *outputs: str) -> About:
        return About(self.name, self.version, self._names, outputs)

    def _run(self, inputs: Mapping[str, ArrayLike], outputs: Sequence[str], timeout: Optional[float], priority: int) -> Call:
        known = {t.name: t for t in self.inputs}
        arrays = [_array(a, known.get(name)) for name, a in inputs.items()]
        return Call(About(self.name, self.version, tuple(inputs), tuple(outputs)), arrays, timeout, priority)


def _array(value: ArrayLike, tensor: Optional[Tensor]) -> Array:
    """Arrays are sent as they are. Lists and numbers become what the model takes."""
    if isinstance(value, numpy.ndarray):
        return value
    dtype = _wire.DTYPES.get(_wire.NAMES.index(tensor.datatype)) if tensor else None
    try:
        return numpy.asarray(value, dtype)
    except (TypeError, ValueError) as e:
        raise _errors.InvalidError(f"found {type(value).__name__}, expected an array: {e}") from e


def _one(outputs: Outputs, call: Call) -> Array:
    name = call.about.outputs[0]
    found = outputs.get(name)
    if found is None:
        raise _errors.InvalidError(f"found no output {name}, expected the model to give it; it gave {', '.join(outputs) or 'none'}")
    return found


def _tensors(described: Optional[list[dict[str, Any]]]) -> tuple[Tensor, ...]:
    return tuple(Tensor(t["name"], t["datatype"], tuple(t["shape"])) for t in described or ())


def _told(t: Tensor) -> str:
    return f"{t.name} {t.datatype}{list(t.shape)}"


_lock = threading.Lock()
_locals: dict[str, Local] = {}  # by the path of the socket; guarded by _lock, which a forked process has anew


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
    version: str = "",
    linger: float = 60,
    timeout: float = 120,
) -> Model:
    """Finds a model, by its name or the path of its file, and the server that runs it.

    With url, such as http://host:8000 or unix:/path/of/a/socket, it is a model of that server.

    Otherwise it runs on this machine, in a server that all processes of this user share. One is started if there is none: for the file that name
    leads to, such as resnet50.onnx, or for the repository, which is a directory of models and may stand in SHOAL_MODEL_REPOSITORY instead. It
    ends when for linger seconds no process has used it. Without file and repository the server is one that somebody has started with
    --local-socket.

    It returns when the model is loaded, and gives up after timeout seconds.
    """
    given = os.fspath(name)
    model = given
    transport: Optional[_Transport] = None
    server: Optional[_start.Server] = None
    source = repository or os.environ.get("SHOAL_MODEL_REPOSITORY")
    if url is not None and url.startswith("unix:"):
        transport = _local(url.removeprefix("unix:"))
    elif url is not None:
        transport = HTTP(url)
    elif repository is None and (os.sep in given or pathlib.Path(given).suffix in _FILES):
        model, server = pathlib.Path(given).stem, _start.Server(given, linger, timeout)
    elif source is not None:
        server = _start.Server(os.fspath(source), linger, timeout)
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
    found = Model(transport, model, version, transport.describe(model, timeout))
    found._loaded = {"name": given, "repository": repository, "url": url, "version": version, "linger": linger, "timeout": timeout}
    return found


def _load(arguments: dict[str, Any]) -> Model:
    return load(**arguments)


# Endings of files that are models.
_FILES = {".onnx", ".joblib", ".pkl", ".ubj", ".bst", ".json", ".pt"}
