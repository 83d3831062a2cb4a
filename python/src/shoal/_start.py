"""Finds a server on this machine, and starts one that many programs share if there is none."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Optional

from . import _errors, _wire
from ._local import Connection


def binary() -> str:
    """The server: what SHOAL_BINARY names, that of this package, or the one in PATH."""
    named = os.environ.get("SHOAL_BINARY")
    if named:
        return named
    inside = pathlib.Path(__file__).with_name("_server") / "bin" / "shoal"
    if inside.exists():
        return str(inside)
    found = shutil.which("shoal")
    if found and pathlib.Path(found).resolve() != pathlib.Path(sys.argv[0]).resolve():
        return found
    raise _errors.NotFoundError("found no server: this package was installed without one; name it with SHOAL_BINARY, or put shoal into PATH")


def main() -> None:
    """The command shoal, which is the server's."""
    program = binary()
    os.execv(program, [program, *sys.argv[1:]])


def directory() -> pathlib.Path:
    """Where the sockets of this user's servers are. It is the user's alone: who else could write there could answer in their place."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = pathlib.Path(runtime) / "shoal" if runtime else pathlib.Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise _errors.UnavailableError(f"found {path} open to other users, expected it to be this user's alone; remove it, or set XDG_RUNTIME_DIR")
    return path


def running() -> str:
    """Where a server is that somebody has started with --local-socket: what SHOAL_LOCAL_SOCKET says, or where auto is."""
    named = os.environ.get("SHOAL_LOCAL_SOCKET")
    return named if named and named != "auto" else str(directory() / "shoal.sock")


class Server:
    """The server of one repository or model file, which starts when it is needed and ends when for some time nobody is connected."""

    def __init__(self, source: str, linger: float, timeout: float) -> None:
        self.source, self.linger, self.timeout = os.path.realpath(source), linger, timeout
        if not os.path.exists(self.source):
            raise _errors.NotFoundError(f"found nothing at {source}, expected a directory of models or a model's file")
        base = directory() / hashlib.sha256(self.source.encode()).hexdigest()[:16]
        self.path = str(base.with_suffix(".sock"))
        self._lock, self.log = base.with_suffix(".lock"), base.with_suffix(".log")

    def connect(self) -> Connection:
        """A connection to the server, once it has loaded its models. Of many who want one at the same time, one starts it."""
        while True:
            connection = self._try() or self._find()
            try:
                until = time.monotonic() + self.timeout
                while connection.describe("")[1] & _wire.STILL_LOADING and time.monotonic() < until:
                    time.sleep(0.02)
                return connection
            except OSError:
                connection.close()
                if self.last_words():
                    raise _errors.UnavailableError(f"the server ended while it loaded its models: {self.last_words()}") from None
                # It had not been used for a while, and ended just when we came.
            except BaseException:
                connection.close()
                raise

    def _find(self) -> Connection:
        with self._locked():
            return self._try() or self._start()  # others may have started it meanwhile

    def _try(self) -> Optional[Connection]:
        try:
            return Connection(self.path)
        except (FileNotFoundError, ConnectionError):
            return None  # nobody listens, or is about to end

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)  # which unlocks

    def _start(self) -> Connection:
        with open(self.log, "wb") as log:
            process = subprocess.Popen(  # noqa: S603
                [
                    binary(), "serve", self.source, "--local-socket", self.path, "--local-unused-secs", str(max(1, round(self.linger))),
                    "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=process.wait, name="shoal-server", daemon=True).start()  # so that it leaves no zombie
        until = time.monotonic() + self.timeout
        while True:
            ended = process.poll() is not None
            connection = self._try()  # also if it has ended: another may have been quicker
            if connection is not None:
                return connection
            if ended:
                raise _errors.UnavailableError(f"the server could not be started: {self.last_words() or self.log}")
            if time.monotonic() > until:
                process.kill()
                raise _errors.UnavailableError(f"the server does not listen after {self.timeout:g} s; {self.log} is its log")
            time.sleep(0.01)

    def last_words(self) -> str:
        """What the server said when it ended; nothing if all was well."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()
            for line in reversed(lines):
                if line.startswith("shoal: "):
                    return line.removeprefix("shoal: ")
        return ""
