"""What the tests share: the server with its models, and tritonclient's four forms."""

import concurrent.futures
import contextlib
import time
import unittest

import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from google.protobuf import json_format
from tritonclient.utils import InferenceServerException

import shoal

# What a statistic or an order is told from has a model for each protocol, so that
# nobody else's requests are in between.
POLICY = """dynamic_batching {
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true max_queue_size: 2 }
}"""

# How long the models called busy take for a batch, in seconds: long enough that what
# is sent while one runs arrives while it runs.
BUSY = 1.0

server = None  # the Server that runs, while serving() does


@contextlib.contextmanager
def serving():
    global server
    repository = shoal.Repository()
    try:
        repository.add("echo", shoal.simulated("echo"))
        repository.add("wide", shoal.simulated("wide", dims="[ -1 ]"))
        repository.add("slow", shoal.simulated("slow", fixed_us=250_000))
        for protocol in ("http", "grpc"):
            repository.add(f"busy_{protocol}", shoal.simulated(f"busy_{protocol}", fixed_us=int(BUSY * 1e6), scheduling=POLICY))
            repository.add(f"counted_{protocol}", shoal.simulated(f"counted_{protocol}"))
            repository.add(f"comes_{protocol}", shoal.simulated(f"comes_{protocol}"))
        paths = [repository.path]
        if shoal.library():
            for name in ("types", "strings", "scalar", "fail_if"):
                repository.add(name, onnx=shoal.TESTDATA / f"{name}.onnx")
            paths.append(shoal.ROOT / "examples/onnx")
        server = shoal.Server(*paths, "--model-control-mode", "explicit", "--load-model", "*", "--allow-log-changes", "--allow-client-shm")
        try:
            yield server
        finally:
            server.status = server.stop()
    finally:
        repository.remove()


onnx = unittest.skipUnless(shoal.library(), "there is no ONNX Runtime in ./lib; make deps brings it")


class Common:
    """What tests over each protocol need. lib and aio are tritonclient's modules."""

    def input(self, name, array, datatype="FP32"):
        tensor = self.lib.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def rows(self, *firsts):
        """The input of echo and its like: a row of four for each number."""
        return [self.input("IN", rows_of(*firsts))]

    @contextlib.contextmanager
    def refused(self, code, text):
        """Expects the status, by its name in gRPC, and a message with the text."""
        with self.assertRaises(InferenceServerException) as caught:
            yield
        error = caught.exception
        self.assertEqual(error.status(), self.status(code), error)
        self.assertIn(text, error.message())

    def executions(self, statistics):
        """How many batches the one model of the statistics ran."""
        return int(self.plain(statistics)["model_stats"][0].get("execution_count", 0))

    def await_pending(self, model, count):
        """Returns when that many requests wait for the model."""
        patience = time.monotonic() + 10
        while server.pending(model) != count:
            self.assertLess(time.monotonic(), patience, f"{model} never had {count} requests waiting")
            time.sleep(0.005)

    def in_background(self, pool, model, inputs, **options):
        """Sends a request from another thread, with a client of its own."""

        def call():
            with self.connect() as client:
                result = client.infer(model, inputs, **options)
                return result, time.monotonic()

        return pool.submit(call)


class HTTP(Common):
    protocol = "http"
    lib = tritonclient.http
    aio = tritonclient.http.aio

    def address(self):
        return server.http

    def connect(self):
        return self.lib.InferenceServerClient(server.http, concurrency=8)

    def status(self, code):
        return {
            "NOT_FOUND": "404", "INVALID_ARGUMENT": "400", "UNAVAILABLE": "503", "RESOURCE_EXHAUSTED": "429", "DEADLINE_EXCEEDED": "504",
        }[code]

    def plain(self, answer):
        return answer


class GRPC(Common):
    protocol = "grpc"
    lib = tritonclient.grpc
    aio = tritonclient.grpc.aio

    def address(self):
        return server.grpc

    def connect(self):
        return self.lib.InferenceServerClient(server.grpc)

    def status(self, code):
        return f"StatusCode.{code}"

    def plain(self, answer):
        """The answer as HTTP would have it."""
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)


class Sync:
    """A test with a client that is open while it runs."""

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)


def rows_of(*firsts):
    return numpy.array([[first, first + 0.25, -first, 1e-30] for first in firsts], dtype=numpy.float32)


def pool(size):
    return concurrent.futures.ThreadPoolExecutor(size)
