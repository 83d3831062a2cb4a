"""Inference: values of all types, options of a request, batches, and refusals."""

import queue
import time
import unittest

import numpy

import fixture

try:
    from ml_dtypes import bfloat16  # what newer tritonclients take and give for BF16
except ImportError:
    bfloat16 = numpy.float32  # what older ones do

# Two rows of each type, with its extremes. BF16 has numbers that it can hold.
VALUES = {
    "BOOL": numpy.array([[True, False], [False, True]]),
    "FP16": numpy.array([[0.5, -65504], [numpy.inf, 6e-8]], dtype=numpy.float16),
    "FP32": numpy.array([[0.1, -3.4e38], [1e-45, 16777217]], dtype=numpy.float32),
    "FP64": numpy.array([[0.1, -1.7e308], [5e-324, 1 / 3]], dtype=numpy.float64),
    "BF16": numpy.array([[0.5, -1.0], [3.0, 2.0**100]], dtype=bfloat16),
    "BYTES": numpy.array([[b"", b"\x00a\x00"], ["grüße".encode(), b"\xff\xfe"]], dtype=object),
}
for bits in (8, 16, 32, 64):
    for kind in ("int", "uint"):
        info = numpy.iinfo(f"{kind}{bits}")
        VALUES[f"{kind.upper()}{bits}"] = numpy.array([[info.min, info.max], [1, 0]], dtype=info.dtype)


class TooLate(AssertionError):
    """What was sent while a batch ran may have come after it."""


class Infer(fixture.Sync):
    def test_rows_come_back(self):
        result = self.client.infer("echo", self.rows(1, 2, 3))
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1, 2, 3))

    @fixture.onnx
    def test_every_type_as_binary(self):
        result = self.client.infer("types", [self.input("in_" + t, v, t) for t, v in VALUES.items()])
        for datatype, values in VALUES.items():
            with self.subTest(datatype):
                numpy.testing.assert_array_equal(result.as_numpy("out_" + datatype), values, strict=True)

    @fixture.onnx
    def test_strings_of_any_bytes(self):
        strings = [b"", b"\x00", b"a\x00b\x00", bytes(range(256)), "鱼群".encode(), b"x" * 100_000]
        for string in strings:  # one by one: rows of one request may be longer than the model's batches
            array = numpy.array([[string]], dtype=object)
            result = self.client.infer("strings", [self.input("in", array, "BYTES")])
            self.assertEqual(result.as_numpy("out").tolist(), [[string]])

    @fixture.onnx
    def test_a_number_without_dimensions_has_one_here(self):
        result = self.client.infer("scalar", [self.input("x", numpy.array([21], dtype=numpy.float32))])
        self.assertEqual(result.as_numpy("y").tolist(), [42])

    @fixture.onnx
    def test_an_example_computes(self):
        a, b = numpy.full((1, 16), 3, dtype=numpy.float32), numpy.full((1, 16), 1, dtype=numpy.float32)
        result = self.client.infer("add_sub", [self.input("INPUT0", a), self.input("INPUT1", b)])
        numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
        numpy.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)

    @fixture.onnx
    def test_only_requested_outputs_come(self):
        x = numpy.ones((1, 16), dtype=numpy.float32)
        result = self.client.infer(
            "add_sub", [self.input("INPUT0", x), self.input("INPUT1", x)], outputs=[self.lib.InferRequestedOutput("OUTPUT1")])
        self.assertIsNone(result.as_numpy("OUTPUT0"))
        numpy.testing.assert_array_equal(result.as_numpy("OUTPUT1"), x - x)

    def test_id_and_version_come_back(self):
        answer = self.plain(self.client.infer("echo", self.rows(1), request_id="fisch 7", model_version="1").get_response())
        self.assertEqual((answer["id"], answer["model_name"], answer["model_version"]), ("fisch 7", "echo", "1"))

    def test_parameters_are_taken(self):
        before = self.executions(self.client.get_inference_statistics("echo"))
        result = self.client.infer("echo", self.rows(1), parameters={"text": "a", "number": 3, "yes": True})
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1))
        # One with a reserved name is refused: by the server, or by a newer client itself.
        with self.assertRaisesRegex(fixture.InferenceServerException, "reserved"):
            self.client.infer("echo", self.rows(1), parameters={"text": "a", "triton_number": 3})
        self.assertEqual(self.executions(self.client.get_inference_statistics("echo")), before + 1)

    def test_large_tensors(self):
        big = numpy.arange(2_000_000, dtype=numpy.float32).reshape(2, -1)
        result = self.client.infer("wide", [self.input("IN", big)])
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), big)

    def test_requests_share_batches(self):
        before = self.executions(self.client.get_inference_statistics("slow"))
        for number, result in self.many("slow", 32):
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(number))
        executions = self.executions(self.client.get_inference_statistics("slow")) - before
        self.assertLess(executions, 16, "32 requests make 5 batches or so")

    @fixture.onnx
    def test_a_bad_request_fails_alone(self):
        def index(i):
            return [self.input("index", numpy.array([[i]], dtype=numpy.int64), "INT64")]

        with fixture.pool(8) as pool:
            calls = [self.in_background(pool, "fail_if", index(99 if i == 3 else 0)) for i in range(8)]
            errors = [call.exception() for call in calls]
        self.assertIn("idx=99", str(errors.pop(3)))
        self.assertEqual(errors, [None] * 7)

    def test_refusals_say_what_was_found_and_expected(self):
        zeros = numpy.zeros((1, 4), dtype=numpy.float32)
        nothing = self.lib.InferRequestedOutput("NOTHING")
        cases = {
            "model": ("NOT_FOUND", "unknown model: 'nosuch'", lambda: self.client.infer("nosuch", self.rows(1))),
            "version": ("NOT_FOUND", "version 7", lambda: self.client.infer("echo", self.rows(1), model_version="7")),
            "shape": ("INVALID_ARGUMENT", "Expected [-1,4], got [1,5]",
                      lambda: self.client.infer("echo", [self.input("IN", numpy.zeros((1, 5), dtype=numpy.float32))])),
            "rows": ("INVALID_ARGUMENT", "batch-size must be <= 8", lambda: self.client.infer("echo", self.rows(*range(9)))),
            "type": ("INVALID_ARGUMENT", "data-type is 'INT32', but model 'echo' expects 'FP32'",
                     lambda: self.client.infer("echo", [self.input("IN", zeros.astype(numpy.int32), "INT32")])),
            "input": ("INVALID_ARGUMENT", "'NOTHING'", lambda: self.client.infer("echo", [self.input("NOTHING", zeros)])),
            "output": ("INVALID_ARGUMENT", "'NOTHING'", lambda: self.client.infer("echo", self.rows(1), outputs=[nothing])),
        }
        for name, (code, text, call) in cases.items():
            with self.subTest(name), self.refused(code, text):
                call()
        self.client.infer("echo", self.rows(1))

    def test_priorities_timeouts_and_full_queues(self):
        """The batch that runs may be over before all have been sent: then nothing is known, and it is tried again."""
        for _ in range(4):
            try:
                return self.fill_the_queue(f"busy_{self.protocol}")
            except TooLate:
                pass
        self.fill_the_queue(f"busy_{self.protocol}")

    def fill_the_queue(self, model):
        """While one batch of a busy model runs; its queue has two places for each priority."""
        full = self.rows(*range(8))  # a batch for itself
        with fixture.pool(4) as pool:
            low = [self.in_background(pool, model, full, priority=2) for _ in range(2)]
            self.await_pending(model, 1)  # so the other one runs
            began = time.monotonic()
            late = self.in_background(pool, model, full, priority=2, timeout=200_000)
            try:
                self.await_pending(model, 2)
                with self.refused("RESOURCE_EXHAUSTED", "xceeds maximum queue size"):
                    self.client.infer(model, full, priority=2)
                with self.refused("UNAVAILABLE", "imeout"):
                    late.result()
            finally:
                if time.monotonic() - began > 0.8 * fixture.BUSY:
                    raise TooLate("refused at its time, and not when an instance is free")
            high = self.in_background(pool, model, full, priority=1).result()[1]
            low = sorted(call.result()[1] for call in low)
        self.assertEqual([low[0], high, low[1]], sorted([*low, high]), "the higher priority overtakes what waits")

    def test_classification(self):
        outputs = [self.lib.InferRequestedOutput("OUT", class_count=2)]
        result = self.client.infer("echo", self.rows(3, 5), outputs=outputs)
        self.assertEqual(result.as_numpy("OUT").tolist(), [[b"3.250000:1", b"3.000000:0"], [b"5.250000:1", b"5.000000:0"]])


class InferHTTP(Infer, fixture.HTTP, unittest.TestCase):
    def many(self, model, count):
        with self.lib.InferenceServerClient(self.address(), concurrency=count) as client:
            calls = [client.async_infer(model, self.rows(i)) for i in range(count)]
            for i, call in enumerate(calls):
                yield i, call.get_result()

    @fixture.onnx
    def test_every_type_as_json(self):
        inputs = []
        for datatype, values in VALUES.items():
            tensor = self.lib.InferInput("in_" + datatype, list(values.shape), datatype)
            # The protocol has these two as binary only. JSON has text alone, and no infinity.
            if datatype == "BYTES":
                values = numpy.array([[b"", b"\x00a"], ["grüße".encode(), b'"\\\n']], dtype=object)
            tensor.set_data_from_numpy(values, binary_data=datatype in ("FP16", "BF16"))
            inputs.append((datatype, values, tensor))
        outputs = [self.lib.InferRequestedOutput("out_" + t, binary_data=t in ("FP16", "BF16")) for t in VALUES]
        result = self.client.infer("types", [tensor for _, _, tensor in inputs], outputs=outputs)
        for datatype, values, _ in inputs:
            got = result.as_numpy("out_" + datatype)
            if datatype == "BYTES":
                got = numpy.vectorize(str.encode, otypes=[object])(got)
            with self.subTest(datatype):
                numpy.testing.assert_array_equal(got, values, strict=True)

    def test_json_in_and_binary_out_and_the_reverse(self):
        for way in (True, False):
            tensor = self.lib.InferInput("IN", [1, 4], "FP32")
            tensor.set_data_from_numpy(fixture.rows_of(7), binary_data=way)
            result = self.client.infer("echo", [tensor], outputs=[self.lib.InferRequestedOutput("OUT", binary_data=not way)])
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(7))

    def test_compressed_bodies(self):
        for up in (None, "gzip", "deflate"):
            for down in (None, "gzip", "deflate"):
                with self.subTest(request=up, response=down):
                    result = self.client.infer(
                        "echo", self.rows(1, 2), request_compression_algorithm=up, response_compression_algorithm=down)
                    numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1, 2))

    def test_a_body_made_elsewhere(self):
        body, header_length = self.lib.InferenceServerClient.generate_request_body(self.rows(1))
        self.assertIsNotNone(header_length)
        with self.connect() as client:
            response = client._post("v2/models/echo/infer", body, {"Inference-Header-Content-Length": header_length}, None)
        self.assertEqual(response.status_code, 200)
        result = self.lib.InferenceServerClient.parse_response_body(
            response.read(), header_length=int(response.get("inference-header-content-length")))
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1))


class InferGRPC(Infer, fixture.GRPC, unittest.TestCase):
    def many(self, model, count):
        done = queue.Queue()
        for i in range(count):
            self.client.async_infer(model, self.rows(i), lambda result, error, i=i: done.put((i, result, error)))
        for _ in range(count):
            i, result, error = done.get(timeout=30)
            if error:
                raise error
            yield i, result

    def test_compressed_messages(self):
        for algorithm in ("gzip", "deflate"):
            result = self.client.infer("echo", self.rows(1, 2), compression_algorithm=algorithm)
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1, 2))

    def test_a_deadline_is_kept(self):
        """When it has passed, or earlier if the model has been measured: then the server knows that it will pass.
        By most of five: the answer comes a millisecond before the stream is reset, which looks like a cancellation,
        and a busy machine takes longer now and then."""
        statuses, times = [], []
        for _ in range(5):
            began = time.monotonic()
            with self.assertRaises(fixture.InferenceServerException) as caught:
                self.client.infer("busy_grpc", self.rows(1), client_timeout=0.05)
            statuses.append(caught.exception.status())
            times.append(time.monotonic() - began)
        kept = sum(status in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.RESOURCE_EXHAUSTED") for status in statuses)
        self.assertGreaterEqual(kept, 3, statuses)
        self.assertLess(sorted(times)[2], fixture.BUSY / 2)

    def test_a_call_can_be_taken_back(self):
        done = queue.Queue()
        call = self.client.async_infer("busy_grpc", self.rows(1), lambda result, error: done.put(error))
        call.cancel()
        self.assertIn("ancel", str(done.get(timeout=30)))
