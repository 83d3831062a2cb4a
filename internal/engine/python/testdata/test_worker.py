"""Tests of what needs no server: python -m unittest, with the worker's modules in PYTHONPATH."""

import json
import os
import unittest

import numpy as np

import shoal_connections as connections
import shoal_wire as wire
import shoal_worker
import triton_python_backend_utils as pb_utils


class Tensors(unittest.TestCase):
    def test_every_type_is_known_by_name_number_and_numpy(self):
        for code, name in enumerate(pb_utils._NAMES):
            if name in ("", "BF16"):
                continue
            kind = pb_utils.triton_string_to_numpy("TYPE_" + name)
            self.assertEqual(pb_utils.triton_to_numpy_type(code), kind)
            self.assertEqual(pb_utils.numpy_to_triton_type(kind), code)
        with self.assertRaises(KeyError):
            pb_utils.triton_string_to_numpy("TYPE_COMPLEX")

    def test_a_tensor_knows_its_array(self):
        t = pb_utils.Tensor("x", np.zeros((2, 3), np.int16))
        self.assertEqual((t.name(), t.shape(), t.triton_dtype(), t.is_cpu()), ("x", [2, 3], 7, True))

    def test_an_array_of_the_other_byte_order_is_turned(self):
        t = pb_utils.Tensor("x", np.array([1, 2], dtype=">i4"))
        self.assertTrue(t.as_numpy().dtype.isnative)
        self.assertEqual(t.as_numpy().tolist(), [1, 2])

    def test_what_is_no_array_or_of_no_type_is_refused(self):
        for wrong, error in (([1, 2], TypeError), (np.zeros(1, np.complex64), pb_utils.TritonModelException)):
            with self.assertRaises(error):
                pb_utils.Tensor("x", wrong)

    def test_strings_keep_every_byte(self):
        texts = np.array([[b"a\0b", b""], ["grün", b"\xff"]], dtype=object)
        back = pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(texts))
        self.assertEqual(back.tolist(), [b"a\0b", b"", "grün".encode(), b"\xff"])

    def test_strings_that_are_cut_off_are_refused(self):
        with self.assertRaises(pb_utils.TritonModelException):
            pb_utils.deserialize_bytes_tensor(b"\x05\0\0\0abc")


class Exchange(unittest.TestCase):
    def test_memory_is_shared_with_other_libraries(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        for source in (array, array.__dlpack__(), pb_utils.Tensor("y", array)):
            t = pb_utils.Tensor.from_dlpack("x", source)
            self.assertEqual((t.name(), t.shape(), t.triton_dtype()), ("x", [2, 3], 11))
            self.assertTrue(np.shares_memory(t.as_numpy(), array))
        self.assertEqual(pb_utils.Tensor("x", array).__dlpack_device__(), (1, 0))
        self.assertTrue(np.shares_memory(pb_utils.Tensor.from_dlpack("z", pb_utils.Tensor("x", array).to_dlpack()).as_numpy(), array))

    def test_memory_of_another_device_is_refused(self):
        class OnGPU:
            def __dlpack__(self): raise AssertionError
            def __dlpack_device__(self): return 2, 0
        with self.assertRaises(pb_utils.TritonModelException):
            pb_utils.Tensor.from_dlpack("x", OnGPU())


class Connections(unittest.TestCase):
    def test_payloads_arrive_as_they_were_sent(self):
        ours, theirs = connections.pair()
        texts = np.array([b"a", "bc"], dtype=object)
        turned = np.arange(6, dtype=np.int16).reshape(2, 3).T
        with ours, theirs:
            connections.send_payload(ours, wire.SEND, {"parameters": {"n": 1}}, [pb_utils.Tensor("t", texts), pb_utils.Tensor("n", turned)], wire.LAST_RESPONSE)
            document, tensors, last = connections.receive(theirs, pb_utils.Tensor._view)
            self.assertTrue(last)
            self.assertEqual(document["parameters"], {"n": 1})
            self.assertEqual(tensors[0].as_numpy().tolist(), [b"a", b"bc"])
            self.assertEqual(tensors[1].as_numpy().tolist(), turned.tolist())
            ours.close()
            self.assertIsNone(connections.receive(theirs, pb_utils.Tensor._view))

    def test_few_responses_wait_to_be_read(self):
        ours, theirs = connections.pair()
        with ours, theirs:
            responses = connections.ResponseConnection(ours, 1, 0)  # its other end is on its way to theirs
            responses.connection.setblocking(False)
            sent = 0
            with self.assertRaises(BlockingIOError):
                while sent < 1000:
                    responses.send({}, [], False)
                    sent += 1
            self.assertIn(sent, range(2, 9))
            responses.connection.close()

    def test_a_sender_says_what_is_wrong(self):
        ours, theirs = connections.pair()
        with ours, theirs:
            sender = pb_utils.InferenceResponseSender(connections.ResponseConnection(ours, 1, 0), ["y"])
            for wrong in ({}, {"flags": 7}, {"response": "text"}):
                with self.assertRaises(pb_utils.TritonModelException):
                    sender.send(**wrong)
            self.assertFalse(sender.is_cancelled())
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            with self.assertRaisesRegex(pb_utils.TritonModelException, "has been closed"):
                sender.send(pb_utils.InferenceResponse([]))


class Requests(unittest.TestCase):
    def test_inputs_are_found_by_name(self):
        r = pb_utils.InferenceRequest(request_id="7", inputs=[pb_utils.Tensor("x", np.zeros(1))], requested_output_names=["y"], timeout=5,
                                      parameters={"a": 1})
        self.assertEqual(pb_utils.get_input_tensor_by_name(r, "x").name(), "x")
        self.assertIsNone(pb_utils.get_input_tensor_by_name(r, "z"))
        self.assertEqual((r.request_id(), r.requested_output_names(), r.timeout(), json.loads(r.parameters())), ("7", {"y"}, 5, {"a": 1}))
        self.assertFalse(r.is_cancelled())

    def test_a_response_has_tensors_or_an_error(self):
        r = pb_utils.InferenceResponse(error=pb_utils.TritonError("why", pb_utils.TritonError.NOT_FOUND))
        self.assertTrue(r.has_error())
        self.assertEqual((r.error().message(), r.error().code()), ("why", 2))
        self.assertFalse(pb_utils.InferenceResponse([]).has_error())


class Config(unittest.TestCase):
    def test_what_is_written_stays_unless_the_model_can_more(self):
        c = pb_utils.ModelConfig({"max_batch_size": 4, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}], "output": []})
        c.set_max_batch_size(8)
        c.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [2]})
        c.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [2]})
        c.set_dynamic_batching()
        d = c.as_dict()
        self.assertEqual((d["max_batch_size"], len(d["input"]), len(d["output"]), d["dynamic_batching"]), (8, 1, 1, {}))
        self.assertEqual(pb_utils.get_output_config_by_name(d, "y")["dims"], [2])
        self.assertFalse(pb_utils.using_decoupled_model_transaction_policy(d))

    def test_what_contradicts_the_file_is_refused(self):
        c = pb_utils.ModelConfig({"max_batch_size": 4, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]})
        for wrong in (
            lambda: c.set_max_batch_size(2),
            lambda: c.add_input({"name": "x", "data_type": "TYPE_INT8", "dims": [2]}),
            lambda: c.add_input({"name": "y", "dims": [2]}),
            lambda: c.add_output({"name": "y", "data_type": "TYPE_INT8", "dims": [2], "colour": 1}),
        ):
            with self.assertRaises(ValueError):
                wrong()


def memory():
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, 4096)
    try:
        return shoal_worker.Memory(descriptor, 4096)
    finally:
        os.close(descriptor)


class Kept(unittest.TestCase):
    def setUp(self):
        self.worker = shoal_worker.Worker(None, None)
        self.worker.inputs, self.worker.model_name, self.worker.version = ["x"], "m", 1
        self.worker.memory = [memory(), memory()]

    def batch(self, *numbers, timeout=0):
        """A request whose input is two numbers at 64."""
        table = wire.COUNT.pack(1, 0) + wire.REQUEST.pack(1, 0, 0, 0, timeout, *[0] * 6) + wire.TENSOR.pack(0, 11, 1, 0, 64, 8) + wire.SHAPES[1].pack(2)
        there = self.worker.memory[wire.INPUT]
        there.map[64:72] = np.array(numbers, np.float32)
        there.map[128:128 + len(table)] = table
        request, = self.worker.requests(1, 128, len(table))
        return request

    def kept(self):
        return self.worker.memory[wire.INPUT].kept()

    def test_arrays_that_are_still_used_are_noticed(self):
        for _ in range(2):  # the second table is remembered
            view = self.batch(1, 2).inputs()[0].as_numpy()
            self.assertTrue(self.kept())
            part = view[:1]
            del view
            self.assertTrue(self.kept())
            del part
            self.assertFalse(self.kept())

    def test_so_are_requests_and_tensors(self):
        for _ in range(2):
            request = self.batch(1, 2)
            tensor, = request.inputs()
            self.assertTrue(self.kept())
            del request
            self.assertTrue(self.kept())
            del tensor
            self.assertFalse(self.kept())

    def test_many_tables_hold_no_memory_for_a_model(self):
        for n in range(2 * shoal_worker.TABLES):
            self.batch(1, 2, timeout=n)
            self.assertFalse(self.kept())

    def test_what_a_model_does_to_its_array_the_next_batch_does_not_see(self):
        a = self.batch(1, 2).inputs()[0].as_numpy()
        a.shape = 2, 1
        a.flags.writeable = False
        del a
        again = self.batch(3, 4).inputs()[0].as_numpy()
        self.assertEqual((again.tolist(), again.flags.writeable), ([3, 4], True))

    def test_another_memory_has_other_arrays(self):
        before = self.batch(1, 2).inputs()[0].as_numpy()
        self.worker.memory[wire.INPUT] = memory()
        self.assertEqual(self.batch(3, 4).inputs()[0].as_numpy().tolist(), [3, 4])
        self.assertEqual(before.tolist(), [1, 2])
        self.assertFalse(self.kept())


class Answers(unittest.TestCase):
    def test_outputs_lie_one_behind_the_other(self):
        """Also the second time, when what their table says is remembered, and if one is not in one piece or of strings."""
        worker = shoal_worker.Worker(None, None)
        worker.memory, worker.outputs = [None, memory()], {"x": 0, "t": 1}
        turned = np.arange(6, dtype=np.int16).reshape(2, 3).T
        texts = np.array([b"a", b"bc"], dtype=object)
        requests = [pb_utils.InferenceRequest(requested_output_names=["x", "t"]) for _ in range(3)]
        for _ in range(2):
            responses = [pb_utils.InferenceResponse([pb_utils.Tensor("x", turned), pb_utils.Tensor("t", texts)]),
                         pb_utils.InferenceResponse([pb_utils.Tensor("x", np.zeros(0, np.int16)), pb_utils.Tensor("other", texts)]),
                         pb_utils.InferenceResponse([pb_utils.Tensor("x", turned[:1])])]
            at, size = worker.answer(requests, responses)
            there = worker.memory[wire.OUTPUT].map
            self.assertEqual(at, 192)
            self.assertEqual(there[:12], turned.tobytes())
            self.assertEqual(there[64:75], pb_utils.serialize_byte_tensor(texts))
            self.assertEqual(there[128:132], turned[:1].tobytes())
            self.assertEqual(there[at:at + size], wire.COUNT.pack(3, 0) +
                             wire.RESPONSE.pack(0, 0, 2, 0) + wire.OUTPUTS[2].pack(0, 7, 2, 0, 12, 3, 2) + wire.OUTPUTS[1].pack(1, 13, 1, 0, 11, 2) +
                             wire.RESPONSE.pack(0, 0, 1, 0) + wire.OUTPUTS[1].pack(0, 7, 1, 0, 0, 0) +
                             wire.RESPONSE.pack(0, 0, 1, 0) + wire.OUTPUTS[2].pack(0, 7, 2, 0, 4, 1, 2))


class Wire(unittest.TestCase):
    def test_sizes_are_those_of_the_server(self):
        sizes = [s.size for s in (wire.FRAME, wire.COUNT, wire.REQUEST, wire.TENSOR, wire.RESPONSE, wire.OUTPUTS[0])]
        self.assertEqual(sizes, [32, 8, 56, 32, 16, 24])

    def test_long_texts_are_cut(self):
        self.assertEqual(len(wire.text("x" * 100_000)), wire.MAX_TEXT)


if __name__ == "__main__":
    unittest.main()
