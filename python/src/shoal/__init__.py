"""Runs models from Python: in a server on this machine that many processes share, or in a remote one.

    import numpy, shoal

    model = shoal.load("resnet50.onnx")
    print(model.forward(numpy.zeros((1, 3, 224, 224), numpy.float32)).argmax())
"""

from __future__ import annotations

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
    UnavailableError,
    UnsupportedError,
)
from ._model import Model, Tensor, load

__all__ = [
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
    "UnavailableError",
    "UnsupportedError",
    "load",
]
