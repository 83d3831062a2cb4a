"""Errors: one class for each way in which a program would react. The messages are the server's."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """Base class of all errors of this package. str() returns the message."""

    def __init__(self, text: str, retry_after: Optional[float] = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """Seconds to wait before a retry, or None if the server does not say."""


class InternalError(Error):
    """The model or the server failed: look at its log, and report a defect."""


class InvalidError(Error, ValueError):
    """The request is invalid, for example an array of the wrong type or shape: change it."""


class NotFoundError(Error, LookupError):
    """The model or the server does not exist: check the name."""


class UnsupportedError(Error):
    """The server does not support the request."""


class UnavailableError(Error):
    """The model or the server is unavailable or shutting down: retry later."""


class QueueTimeoutError(UnavailableError):
    """The request waited longer than the model's queue policy allows: send fewer requests."""


class OverloadedError(Error):
    """The queue is full: send fewer requests, and retry after retry_after seconds."""


class LateError(OverloadedError):
    """The server rejected the request because it could not meet the timeout: send fewer requests, or allow more time."""


class DeadlineError(Error, TimeoutError):
    """The request took longer than its timeout."""


class CancelledError(Error):
    """The server cancelled the call. A cancelled asyncio task raises asyncio.CancelledError instead."""


class ForbiddenError(Error):
    """The server is not configured to let clients do this, or to be called by this host name: ask its operator."""


class UnauthenticatedError(Error):
    """The server requires credentials, and the request has no valid ones."""


# Indexed by the server's error codes.
BY_CODE: tuple[type[Error], ...] = (
    InternalError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
    UnavailableError,
    OverloadedError,
    LateError,
    QueueTimeoutError,
    DeadlineError,
    CancelledError,
    ForbiddenError,
    UnauthenticatedError,
)

# By HTTP status, which distinguishes fewer cases.
BY_STATUS: dict[int, type[Error]] = {
    400: InvalidError,
    401: UnauthenticatedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: DeadlineError,
    413: InvalidError,
    421: ForbiddenError,
    429: OverloadedError,
    501: UnsupportedError,
    502: UnavailableError,
    503: UnavailableError,
    504: DeadlineError,
}
