"""Declares models in an app.py.

The decorator checks and records a declaration, and returns the function or class unchanged, so that an app.py can be imported and its functions called
without a server. The worker of a server imports the same file and runs what is declared. numpy is imported only if a declaration uses its types.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar, Union

__all__ = ["BadInput", "Declaration", "TensorSpec", "declared", "model"]

TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")
_BY_DTYPE = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "STRING",
}  # fmt: skip

_Target = TypeVar("_Target", bound=Callable[..., Any])


class BadInput(Exception):
    """Raised by a model if the client's input is invalid. The client receives the message with 400 or INVALID_ARGUMENT."""


def model(
    inputs: Mapping[str, tuple[Any, Sequence[int]]],
    outputs: Mapping[str, tuple[Any, Sequence[int]]],
    max_batch: int = 0,
    name: Optional[str] = None,
    instances: int = 1,
    retry_apart: bool = True,
) -> Callable[[_Target], _Target]:
    """Declares the decorated function or class as a model, and returns it unchanged.

    inputs and outputs map names to a type and a shape. A type is a name such as FP32, INT64 or STRING, or a numpy type. If max_batch is set, the first
    dimension is -1, for rows: the function is called with the rows of several requests, concatenated, and must return the same number of rows. Otherwise
    it is called once per request.

    A function is called with the inputs as keyword arguments. A class is instantiated once per model instance, and the object is called likewise.

    name is the name of the model, by default that of the function. instances is the number of processes.

    retry_apart: a failed call may be repeated with subsets of its rows, so that only the requests that cause the failure fail.
    """

    def declare(target: _Target) -> _Target:
        declared.append(Declaration(target, name or target.__name__, inputs, outputs, max_batch, instances, retry_apart))
        return target

    return declare


class Declaration:
    """A model as its decorator declares it."""

    def __init__(
        self,
        target: Callable[..., Any],
        name: str,
        inputs: Mapping[str, tuple[Any, Sequence[int]]],
        outputs: Mapping[str, tuple[Any, Sequence[int]]],
        max_batch: int = 0,
        instances: int = 1,
        retry_apart: bool = True,
    ) -> None:
        for key, n, least in (("max_batch", max_batch, 0), ("instances", instances, 1)):
            if not isinstance(n, int) or n < least:
                raise ValueError(f"model {name!r}: {key}: found {n!r}, expected an integer of at least {least}")
        self.target, self.name, self.max_batch, self.instances, self.retry_apart = target, name, max_batch, instances, bool(retry_apart)
        self.inputs = _specs(name, "inputs", inputs, max_batch)
        self.outputs = _specs(name, "outputs", outputs, max_batch)
        self._check_call()

    def _check_call(self) -> None:
        """Checks that the callable takes the inputs. The __call__ of a class may be inherited, but not from type: every class has that one."""
        call: Any = self.target
        self_argument: list[None] = []
        if isinstance(self.target, type):
            call, self_argument = next((vars(k)["__call__"] for k in self.target.__mro__ if "__call__" in vars(k)), None), [None]
        if call is None:
            raise TypeError(f"model {self.name!r}: found a class without __call__, expected one that takes the inputs")
        try:
            inspect.signature(call).bind(*self_argument, **self.inputs)
        except TypeError as e:
            raise TypeError(f"model {self.name!r}: it cannot be called with the inputs {', '.join(self.inputs)}: {e}") from None


declared: list[Declaration] = []  # in the order in which the decorators ran


def _specs(model_name: str, kind: str, given: Mapping[str, tuple[Any, Sequence[int]]], max_batch: int) -> dict[str, TensorSpec]:
    if not isinstance(given, Mapping) or not given:
        raise TypeError(f'model {model_name!r}: {kind}: found {given!r}, expected a dict such as {{"x": ("FP32", [-1, 3])}}')
    return {name: TensorSpec(f"model {model_name!r}: {kind}[{name!r}]", name, spec, max_batch) for name, spec in given.items()}


class TensorSpec:
    """The declaration of an input or an output."""

    def __init__(self, where: str, name: str, spec: tuple[Any, Sequence[int]], max_batch: int) -> None:
        self.name = name
        try:
            of, shape = spec
            self.shape = [int(d) for d in shape]
        except (TypeError, ValueError):
            raise TypeError(f'{where}: found {spec!r}, expected a type and a shape, such as ("FP32", [-1, 3])') from None
        self.type = type_name(where, of)
        if any(d < 1 and d != -1 for d in self.shape):
            raise ValueError(f"{where}: found shape {self.shape}, expected sizes of at least 1, or -1 for any size")
        if max_batch and self.shape[:1] != [-1]:
            raise ValueError(f"{where}: found shape {self.shape}, expected -1 first, for the rows of a batch, because max_batch is {max_batch}")
        if not self.shape:
            raise ValueError(f"{where}: found no dimension, expected at least one")
        self.dims = self.shape[1:] if max_batch else self.shape
        # One number per row. Clients see a dimension of size one, as with ONNX models.
        self.scalar = not self.dims
        self.dims = self.dims or [1]


def type_name(where: str, of: Union[str, type, Any]) -> str:
    """Returns Triton's name of a type that is given by that name or as a numpy type."""
    if isinstance(of, str):
        name = of[len("TYPE_") :] if of.startswith("TYPE_") else of
        name = "STRING" if name == "BYTES" else name
        if name in TYPES:
            return name
    if of in (str, bytes, object):
        return "STRING"
    import numpy  # not needed by declarations that use names

    try:
        dtype = numpy.dtype(of)
    except TypeError:
        dtype = None
    found = None if dtype is None else "STRING" if dtype.kind in "SU" else _BY_DTYPE.get(dtype.name)
    if found is None:
        raise TypeError(f"{where}: found type {of!r}, expected a name such as FP32, INT64 or STRING, or a numpy dtype")
    return found
