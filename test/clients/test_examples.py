"""The models of Triton's example repository, asked what Triton's example clients ask.

The server has its default flags, but for its name and the ports. Each test does with
tritonclient what the example in its comment does; originals.py runs the examples themselves,
where they have been fetched.
"""

import asyncio
import pathlib
import queue
import unittest

import grpc
import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import shoal

EXAMPLES = pathlib.Path(__file__).resolve().parent / "examples"
LEFT, RIGHT = numpy.arange(16, dtype=numpy.int32).reshape(1, 16), numpy.ones((1, 16), numpy.int32)

needed = unittest.skipUnless(shoal.library() and shoal.PYTHON.exists(), "there is no ONNX Runtime in ./lib, or no numpy in bin/worker; make deps brings both")


class Served(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = shoal.Server(EXAMPLES, "--id", "triton", *cls.flags, python=shoal.PYTHON, patience=120)
        cls.addClassCleanup(cls.server.stop)
        cls.clients = {
            "http": (tritonclient.http, tritonclient.http.InferenceServerClient(cls.server.http, concurrency=4)),
            "grpc": (tritonclient.grpc, tritonclient.grpc.InferenceServerClient(cls.server.grpc)),
        }
        for _, client in cls.clients.values():
            cls.addClassCleanup(client.close)

    def both(self):
        """tritonclient's module and a client, for each protocol."""
        for protocol, (lib, client) in self.clients.items():
            with self.subTest(protocol):
                yield lib, client

    def index(self, client):
        answer = client.get_model_repository_index()
        if isinstance(answer, list):
            return {m["name"]: (m.get("state", ""), m.get("reason", "")) for m in answer}
        return {m.name: (m.state, m.reason) for m in answer.models}

    def inputs(self, lib, datatype, *arrays):
        tensors = []
        for i, array in enumerate(arrays):
            tensors.append(lib.InferInput(f"INPUT{i}", list(array.shape), datatype))
            tensors[-1].set_data_from_numpy(array)
        return tensors

    def expect(self, result, left=LEFT, right=RIGHT):
        numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0"), left + right)
        numpy.testing.assert_array_equal(result.as_numpy("OUTPUT1"), left - right)


@needed
class TestExamples(Served):
    def test_all_models_serve(self):
        for _, client in self.both():
            found = self.index(client)
            self.assertEqual({name for name, (state, _) in found.items() if state != "READY"}, set())
            self.assertEqual(len(found), 8)

    def test_health_and_metadata(self):  # simple_http_health_metadata, simple_grpc_health_metadata
        for lib, client in self.both():
            http = lib is tritonclient.http
            self.assertTrue(client.is_server_live(headers={"test": "1"}) and client.is_server_ready() and client.is_model_ready("simple"))
            server, model = client.get_server_metadata(), client.get_model_metadata("simple")
            self.assertEqual((server["name"], model["name"]) if http else (server.name, model.name), ("triton", "simple"))
            with self.assertRaisesRegex(InferenceServerException, "Request for unknown model"):
                client.get_model_metadata("wrong_model_name")

    def test_sums_and_differences(self):  # simple_http_infer_client, simple_grpc_infer_client
        for lib, client in self.both():
            outputs = [lib.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
            self.expect(client.infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT), outputs=outputs, request_id="1", headers={"test": "1"}))
            only = client.infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT), outputs=outputs[:1])
            self.assertIsNone(only.as_numpy("OUTPUT1"))

    def test_compressed_requests(self):  # the options of simple_http_infer_client
        lib, client = self.clients["http"]
        for algorithm in ("gzip", "deflate"):
            with self.subTest(algorithm):
                self.expect(client.infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT), request_compression_algorithm=algorithm, response_compression_algorithm=algorithm))

    def test_asynchronous_calls(self):  # simple_http_async_infer_client, simple_grpc_async_infer_client
        lib, client = self.clients["http"]
        for call in [client.async_infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT)) for _ in range(4)]:
            self.expect(call.get_result())
        lib, client = self.clients["grpc"]
        done = queue.Queue()
        client.async_infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT), callback=lambda result, error: done.put((result, error)))
        result, error = done.get(timeout=60)
        self.assertIsNone(error)
        self.expect(result)

    def test_clients_of_asyncio(self):  # simple_http_aio_infer_client, simple_grpc_aio_infer_client
        async def call(lib, aio, address):
            async with aio.InferenceServerClient(address) as client:
                self.expect(await client.infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT)))

        asyncio.run(call(tritonclient.http, tritonclient.http.aio, self.server.http))
        asyncio.run(call(tritonclient.grpc, tritonclient.grpc.aio, self.server.grpc))

    def test_strings(self):  # simple_http_string_infer_client, simple_grpc_string_infer_client
        def spelled(array):
            return numpy.array([str(n).encode() for n in array.flat], dtype=object).reshape(array.shape)

        for lib, client in self.both():
            result = client.infer("simple_string", self.inputs(lib, "BYTES", spelled(LEFT), spelled(RIGHT)))
            numpy.testing.assert_array_equal(result.as_numpy("OUTPUT0").astype(numpy.int32), LEFT + RIGHT)
            text = numpy.array([[b"\xc3\xbc", b"", b"\x00b"]], dtype=object)
            numpy.testing.assert_array_equal(client.infer("simple_identity", self.inputs(lib, "BYTES", text)).as_numpy("OUTPUT0"), text)

    def test_options_of_connections(self):  # simple_grpc_custom_args_client, simple_grpc_keepalive_client
        lib = tritonclient.grpc
        for options in ({"channel_args": [("grpc.primary_user_agent", "tests")]}, {"keepalive_options": lib.KeepAliveOptions(keepalive_time_ms=2**31 - 1, keepalive_timeout_ms=20000)}):
            with lib.InferenceServerClient(self.server.grpc, **options) as client:
                self.expect(client.infer("simple", self.inputs(lib, "INT32", LEFT, RIGHT)))

    def message(self, model, datatype, name, shape):
        request = service_pb2.ModelInferRequest(model_name=model, id="my request id")
        request.inputs.append(service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape))
        return request

    def stub(self):
        channel = grpc.insecure_channel(self.server.grpc)
        self.addCleanup(channel.close)
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def test_typed_contents(self):  # grpc_explicit_int_content_client, _int8_, _byte_
        for model, datatype, put in (
            ("simple", "INT32", lambda t, a: t.contents.int_contents.extend(a)),
            ("simple_int8", "INT8", lambda t, a: t.contents.int_contents.extend(a)),
            ("simple_string", "BYTES", lambda t, a: t.contents.bytes_contents.extend(str(n).encode() for n in a)),
        ):
            with self.subTest(model):
                request = self.message(model, datatype, "INPUT0", [1, 16])
                request.inputs.append(service_pb2.ModelInferRequest.InferInputTensor(name="INPUT1", datatype=datatype, shape=[1, 16]))
                put(request.inputs[0], LEFT[0].tolist())
                put(request.inputs[1], RIGHT[0].tolist())
                result = tritonclient.grpc.InferResult(self.stub().ModelInfer(request)).as_numpy("OUTPUT0")
                numpy.testing.assert_array_equal(result.astype(numpy.int32), LEFT + RIGHT)

    def test_raw_contents(self):  # grpc_client
        request = self.message("densenet_onnx", "FP32", "data_0", [3, 224, 224])
        request.outputs.append(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="fc6_1"))
        request.raw_input_contents.append(b"a" * (3 * 224 * 224 * 4))
        answer = self.stub().ModelInfer(request)
        self.assertEqual((list(answer.outputs[0].shape), answer.id), ([1000], "my request id"))

    def test_pictures_are_classified(self):  # image_client, without a picture
        pictures = {
            "densenet_onnx": ("data_0", "fc6_1", numpy.full((3, 224, 224), 0.5, numpy.float32), 1000),
            "inception_onnx": ("input:0", "InceptionV3/Predictions/Softmax:0", numpy.full((299, 299, 3), 0.5, numpy.float32), 1001),
        }
        for lib, client in self.both():
            for model, (name, output, picture, classes) in pictures.items():
                tensor = lib.InferInput(name, list(picture.shape), "FP32")
                tensor.set_data_from_numpy(picture)
                scores = client.infer(model, [tensor]).as_numpy(output)
                self.assertEqual(scores.shape, (classes,))
                best = client.infer(model, [tensor], outputs=[lib.InferRequestedOutput(output, class_count=3)]).as_numpy(output)
                value, number, label = best[0].decode().split(":")
                self.assertEqual((int(number), label), (scores.argmax(), f"CLASS {scores.argmax()}"))
                self.assertAlmostEqual(float(value), float(scores.max()), places=5)


@needed
class TestModelControl(Served):
    flags = ("--model-control-mode", "explicit")

    def test_models_are_loaded_and_unloaded(self):  # simple_http_model_control, simple_grpc_model_control
        for lib, client in self.both():
            self.assertEqual(len(self.index(client)), 8)
            client.load_model("simple")
            self.assertTrue(client.is_model_ready("simple"))
            with self.assertRaisesRegex(InferenceServerException, "failed to load"):
                client.load_model("simple", config='"parameters": {"config": {{"max_batch_size": "16"}}}')
            client.load_model("simple", config='{"max_batch_size":"16"}')
            config = client.get_model_config("simple")
            self.assertEqual(config["max_batch_size"] if lib is tritonclient.http else config.config.max_batch_size, 16)
            client.unload_model("simple")
            self.assertFalse(client.is_model_ready("simple"))
            with self.assertRaisesRegex(InferenceServerException, "failed to load"):
                client.load_model("wrong_model_name")
