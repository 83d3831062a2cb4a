"""Finds the server on this machine that programs share, and starts it if necessary."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import socket
import stat
import struct
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
    """Returns the path of the server program: SHOAL_BINARY, the one in this package, or the one in PATH. The server starts in another directory, so the path is absolute."""
    named = os.environ.get("SHOAL_BINARY")
    if named:
        return os.path.abspath(named) if os.sep in named else named  # Popen looks it up in PATH
    inside = pathlib.Path(__file__).with_name("_server") / "bin" / "shoal"
    if inside.exists():
        return str(inside)
    found = shutil.which("shoal")
    if found and pathlib.Path(found).resolve() != pathlib.Path(sys.argv[0]).resolve():
        return os.path.abspath(found)
    raise _errors.NotFoundError("found no shoal program: this package was installed without it; set SHOAL_BINARY to its path, or add it to PATH")


def environment() -> dict[str, str]:
    """Returns the environment of a server. If this Python is that of a virtual environment that is not activated, its python3 comes first in PATH: it has this package's dependencies, and Python models need them."""
    if sys.prefix == sys.base_prefix or "VIRTUAL_ENV" in os.environ:
        return dict(os.environ)
    programs = os.path.join(sys.prefix, "bin")
    return {**os.environ, "PATH": os.pathsep.join(filter(None, [programs, os.environ.get("PATH")]))}


def main() -> None:
    """The shoal command: runs the server program with the same arguments."""
    program = binary()
    os.execve(program, [program, *sys.argv[1:]], environment())


def directory() -> pathlib.Path:
    """Returns the directory of this user's sockets. Other users must not have access to it: with write access they could impersonate the servers."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = pathlib.Path(runtime) / "shoal" if runtime else pathlib.Path(tempfile.gettempdir()) / f"shoal-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise _errors.UnavailableError(f"found {path} open to other users, expected it to be this user's alone; remove it, or set XDG_RUNTIME_DIR")
    return path


def running() -> str:
    """Returns the socket of a server that the user started: SHOAL_LOCAL_SOCKET, or the path that --local-socket auto stands for."""
    named = os.environ.get("SHOAL_LOCAL_SOCKET")
    return named if named and named != "auto" else str(directory() / "shoal.sock")


def _peer(connection: socket.socket) -> int:
    """Returns the ID of the process that listens for a connection."""
    process: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return process


class Server:
    """The server of one repository or model file. It is started when needed, and exits once no process has been connected for linger seconds."""

    def __init__(self, source: str, linger: float, timeout: float, config: str = "") -> None:
        """config is the configuration of a model's file, as JSON. Processes that give the same share a server."""
        self.source, self.timeout, self.config = os.path.realpath(source), timeout, config
        if not os.path.exists(self.source):
            raise _errors.NotFoundError(f"found nothing at {source}, expected a directory of models or a model's file")
        base = directory() / hashlib.sha256((self.source + config).encode()).hexdigest()[:16]
        self.path = str(base.with_suffix(".sock"))
        self._lock, self.log = base.with_suffix(".lock"), base.with_suffix(".log")
        self._unused = max(1, round(linger))  # seconds
        self._loaded: int | None = None  # process ID of the server that had loaded its models

    def connect(self) -> Connection:
        """Returns a connection to the server, once it has loaded its models. If several processes connect at the same time, one of them starts the server. Later
        connections do not wait: a model that became unready concerns only its own calls."""
        until = time.monotonic() + self.timeout
        while True:
            connection = self._try() or self._find()
            loading = False
            try:
                process = _peer(connection.socket)
                while process != self._loaded and connection.describe("")[1] & _wire.STILL_LOADING and time.monotonic() < until:
                    loading = True
                    time.sleep(0.02)
                self._loaded = process
                return connection
            except OSError:
                connection.close()
                if self.exit_message():
                    raise _errors.UnavailableError(f"the server exited while it loaded its models: {self.exit_message()}") from None
                if loading or time.monotonic() > until:  # a model that kills the server would kill the next one, too
                    raise _errors.UnavailableError(f"the server exited while it loaded its models; {self.log} is its log") from None
                # It was unused for a while, and exited just now.
            except BaseException:
                connection.close()
                raise

    def _find(self) -> Connection:
        with self._locked():
            return self._try() or self._start()  # another process may have started it meanwhile

    def _try(self) -> Optional[Connection]:
        try:
            return Connection(self.path)
        except (FileNotFoundError, ConnectionError):
            return None  # no server listens, or it is about to exit

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)  # which unlocks

    def _start(self) -> Connection:
        until = time.monotonic() + self.timeout
        while True:
            began = time.monotonic()
            process = self._launch()
            connection = self._await(process, until)
            if connection is not None:
                return connection
            if process.returncode != 0 or time.monotonic() < began + self._unused or time.monotonic() > until:
                raise _errors.UnavailableError(f"the server could not be started: {self.exit_message() or self._status(process)}")
            # It was unused for so long that it exited before this process got to connect, as on a busy machine.

    def _launch(self) -> "subprocess.Popen[bytes]":
        with open(self.log, "wb") as log:
            process = subprocess.Popen(  # noqa: S603
                [
                    binary(), "serve", self.source, "--local-socket", self.path, "--local-unused-secs", str(self._unused),
                    "--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", *(["--file-config", self.config] if self.config else []),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, env=environment(),
            )  # fmt: skip
        threading.Thread(target=process.wait, name="shoal-server", daemon=True).start()  # so that it leaves no zombie
        return process

    def _await(self, process: "subprocess.Popen[bytes]", until: float) -> Optional[Connection]:
        """Returns a connection to the server that is started, or None if that has exited."""
        while True:
            exited = process.poll() is not None
            connection = self._try()  # even if it has exited: another server may have started first
            if connection is not None or exited:
                return connection
            if time.monotonic() > until:
                process.kill()
                raise _errors.UnavailableError(f"the server does not listen after {self.timeout:g} s; {self.log} is its log")
            time.sleep(0.01)

    def _status(self, process: "subprocess.Popen[bytes]") -> str:
        return f"it ended with status {process.returncode}; {self.log} is its log"

    def exit_message(self) -> str:
        """Returns the error message in the server's log, or "" if there is none."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").splitlines()
            for line in reversed(lines):
                if line.startswith("shoal: "):
                    return line.removeprefix("shoal: ")
        return ""
