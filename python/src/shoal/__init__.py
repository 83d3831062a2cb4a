"""Calls models, and declares them.

A program calls models in a server on this machine that many processes share, or in a remote one:

    import numpy, shoal

    model = shoal.load("resnet50.onnx")
    print(model.forward(numpy.zeros((1, 3, 224, 224), numpy.float32)).argmax())

An app.py declares models, which "shoal serve app.py" serves:

    import shoal

    @shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32)
    def total(x):
        return {"y": x.sum(axis=1)}

The workers of a server have this same package.
"""

import typing as _typing

from ._app import BadInput, model
from ._errors import (
    CancelledError,
    DeadlineError,
    Error,
    ForbiddenError,
    InternalError,
    InvalidError,
    LateError,
    NotFoundError,
    OverloadedError,
    QueueTimeoutError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from ._version import __version__

if _typing.TYPE_CHECKING:
    from ._model import Model, Tensor, load

__all__ = [
    "BadInput",
    "CancelledError",
    "DeadlineError",
    "Error",
    "ForbiddenError",
    "InternalError",
    "InvalidError",
    "LateError",
    "Model",
    "NotFoundError",
    "OverloadedError",
    "QueueTimeoutError",
    "Tensor",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "load",
    "model",
]


def __getattr__(name: str) -> _typing.Any:
    """Imports the client when it is first used. It needs numpy, and a program that only declares models does not."""
    if name not in ("Model", "Tensor", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _model

    globals()[name] = found = getattr(_model, name)
    return found


def __dir__() -> list[str]:
    return __all__
