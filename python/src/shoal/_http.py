"""Calls over HTTP: the KServe v2 protocol with binary tensors."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import http.client
import json
import math
import ssl
import struct
import time
import urllib.parse
from typing import Any, Optional

from . import _errors, _wire
from ._local import GRACE, MAX_CALLS, MAX_TIMEOUT, Call, Outputs, reset_when_forked

JSON_LENGTH = "Inference-Header-Content-Length"


class HTTP:
    """The HTTP transport to one server. Each call has a connection of its own while it runs; idle connections are reused."""

    def __init__(self, url: str, token: Optional[str] = None, ca: Optional[str] = None, cert: Optional[tuple[str, str]] = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # of the port, or of the brackets around an address
            valid = False
        if not valid:
            raise _errors.InvalidError(f"url: found {url!r}, expected one such as http://localhost:8000, or unix:/path/of/a/socket")
        self.url, self._host, self._prefix = url, parts.netloc, parts.path.rstrip("/")
        self._header = {"Authorization": f"Bearer {token}"} if token else {}
        self._context: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            self._context = ssl.create_default_context(cafile=ca)
            if cert is not None:
                self._context.load_cert_chain(*cert)
        elif ca is not None or cert is not None:
            raise _errors.InvalidError(f"url: found {url!r}, expected one that begins with https://, because ca or cert is given")
        self.reset()
        reset_when_forked(self)

    def reset(self) -> None:
        """Drops all connections without closing them: after a fork they belong to the parent process."""
        self._idle: collections.deque[http.client.HTTPConnection] = collections.deque()
        self._threads = self._new_threads()

    @staticmethod
    def _new_threads() -> concurrent.futures.Executor:
        """Returns what runs calls of event loops. It starts threads as calls need them; they end when nothing refers to it, and before the interpreter does."""
        return concurrent.futures.ThreadPoolExecutor(MAX_CALLS, "shoal-http")

    def describe(self, model: str, version: str, timeout: float) -> dict[str, Any]:
        """Returns the metadata of a model, once the server has loaded its models."""
        until, timeout = time.monotonic() + timeout, min(timeout, MAX_TIMEOUT)
        while True:
            try:
                _, body = self._exchange("GET", self._path(model, version), None, {}, timeout)
            except (_errors.NotFoundError, _errors.UnauthenticatedError, _errors.ForbiddenError):
                raise  # a server that still loads models is unavailable
            except _errors.Error:
                ready = self._ready(timeout)
                if ready or time.monotonic() > until:
                    raise
                time.sleep(0.1)
                continue
            try:
                description = json.loads(body)
                return {"inputs": description["inputs"], "outputs": description["outputs"]}
            except (ValueError, LookupError, TypeError) as e:
                raise malformed(self.url, e) from e

    def _ready(self, timeout: float) -> bool:
        try:
            self._exchange("GET", self._prefix + "/v2/health/ready", None, {}, timeout)
        except _errors.UnavailableError:
            return True  # no server answers, so there is nothing to wait for
        except _errors.Error:
            return False
        return True

    def _path(self, model: str, version: str) -> str:
        path = f"{self._prefix}/v2/models/{urllib.parse.quote(_wire.encode(model), safe='')}"
        return f"{path}/versions/{version}" if version else path

    def infer(self, call: Call) -> Outputs:
        head, parts = document(call)
        size = len(head) + sum(map(len, parts))
        headers = {JSON_LENGTH: str(len(head)), "Content-Length": str(size), "Content-Type": "application/octet-stream"}
        length, body = self._exchange("POST", self._path(call.target.model, call.target.version) + "/infer", [head, *parts], headers, call.timeout)
        try:
            return outputs(body, length)
        except (ValueError, LookupError, TypeError, AttributeError, struct.error) as e:
            raise malformed(self.url, e) from e

    async def infer_async(self, call: Call) -> Outputs:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.infer, call)

    def _exchange(
        self, method: str, path: str, body: Optional[list[Any]], headers: dict[str, str], timeout: Optional[float]
    ) -> tuple[Optional[str], bytes]:
        """Sends a request. Returns the length of the JSON part of the response, if the server sends it, and the whole body."""
        while True:
            fresh = not self._idle
            try:
                connection = self._idle.pop()
            except IndexError:
                connection, fresh = self._connect(), True
            try:
                connection.timeout = None if timeout is None else timeout + GRACE
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                try:
                    connection.request(method, path, iter(body) if body else None, {**headers, **self._header})
                    response = connection.getresponse()
                    text = response.read()
                except (BrokenPipeError, ConnectionResetError) as e:
                    response = early_response(connection, e)
                    text = response.read()
                    connection.close()  # the server has not read all of the request
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                if timeout is not None and isinstance(e, TimeoutError) and e.errno is None:  # one of the system has a number
                    raise _errors.DeadlineError(f"{self.url} did not answer within {GRACE:g} s after the timeout of {timeout:g} s") from None
                if not fresh and isinstance(e, (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected)):
                    continue  # the server had closed it while it was idle
                raise _errors.UnavailableError(f"{self.url}: {e}") from e
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
            if response.status == 200:
                return response.headers.get(JSON_LENGTH), text
            raise failure(response.status, response.headers.get("Retry-After"), text)

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(self._host, context=self._context)
        return http.client.HTTPConnection(self._host)

    def close(self) -> None:
        """Closes the idle connections. Threads end when their calls have returned."""
        self._threads = self._new_threads()
        while self._idle:
            self._idle.pop().close()


def early_response(connection: http.client.HTTPConnection, error: OSError) -> http.client.HTTPResponse:
    """Returns the response of a server that answered and closed the connection before it had read the whole request. Raises error if it has not answered."""
    try:
        return connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise error from None


def document(call: Call) -> tuple[bytes, list[Any]]:
    """Returns the JSON part of a request, and the data of its inputs."""
    inputs, parts = [], []
    for name, array, code in zip(call.target.inputs, call.arrays, _wire.codes_of(call.arrays)):
        data = _wire.to_strings(array) if code == _wire.BYTES else array.astype(array.dtype.newbyteorder("<"), "C", copy=False).tobytes()
        inputs.append({"name": name, "datatype": _wire.NAMES[code], "shape": array.shape, "parameters": {"binary_data_size": len(data)}})
        parts.append(data)
    parameters: dict[str, Any] = {"binary_data_output": True}
    if call.priority:
        parameters["priority"] = call.priority
    if call.timeout is not None:
        parameters["timeout"] = max(1, math.ceil(call.timeout * 1e6))
    head: dict[str, Any] = {"inputs": inputs, "parameters": parameters}
    if call.target.outputs:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in call.target.outputs]
    return json.dumps(head).encode(), parts


def outputs(body: bytes, length: Optional[str]) -> Outputs:
    """Returns the arrays of a response body."""
    end = len(body) if length is None else int(length)
    data, at = memoryview(body), end
    found = {}
    for one in json.loads(body[:end])["outputs"]:
        size = one.get("parameters", {}).get("binary_data_size")
        if size is None:
            raise _errors.UnsupportedError(f"found the output {one['name']} as JSON, expected binary data: the server lacks the extension for it")
        found[one["name"]] = _wire.from_bytes(_wire.NAMES.index(one["datatype"]), one["shape"], data[at : at + size])
        at += size
    return found


def malformed(url: str, error: Exception) -> _errors.InternalError:
    return _errors.InternalError(f"{url}: the response is not valid KServe v2: {error!r}")


def failure(status: int, retry: Optional[str], text: bytes) -> _errors.Error:
    try:
        message = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        message = text.decode("utf-8", "replace") or f"HTTP status {status}"
    return _errors.BY_STATUS.get(status, _errors.InternalError)(message, float(retry) if retry and retry.isdecimal() else None)
