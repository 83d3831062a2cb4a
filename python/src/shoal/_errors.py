"""What can go wrong, one class for each thing that a program would do differently. The sentence is the server's."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """Something went wrong; str() says what. All errors of this package are of this class."""

    def __init__(self, text: str, retry_after: Optional[float] = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        """After how many seconds it may be worth trying again, if that is known."""


class InternalError(Error):
    """A defect, or a model that fails: report it."""


class InvalidError(Error, ValueError):
    """The arrays are not what the model takes: change them."""


class NotFoundError(Error, LookupError):
    """There is no such model or server: look at the name."""


class UnsupportedError(Error):
    """The server cannot do this: ask for something else."""


class UnavailableError(Error):
    """The model or the server is not there, or is going away: try again later."""


class QueueTimeoutError(UnavailableError):
    """It waited longer than the model's queue policy allows: send less."""


class OverloadedError(Error):
    """Too much is waiting: send less, and try again after a while."""


class LateError(OverloadedError):
    """It would have been answered too late: send less, or allow more time."""


class DeadlineError(Error, TimeoutError):
    """The timeout passed."""


class CancelledError(Error):
    """Somebody else ended the call; asyncio's own cancellation is not this."""


class ForbiddenError(Error):
    """The server is not configured to let clients do this, or to be called by this host name: ask its operator."""


# By the server's codes, in their order.
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
)

# By the status of an HTTP answer, which tells less apart.
BY_STATUS: dict[int, type[Error]] = {
    400: InvalidError,
    403: ForbiddenError,
    404: NotFoundError,
    413: InvalidError,
    421: ForbiddenError,
    429: OverloadedError,
    501: UnsupportedError,
    503: UnavailableError,
    504: DeadlineError,
}
