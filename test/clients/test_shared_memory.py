"""Tensors in system shared memory, with the calls of Triton's example clients: simple_http_shm_client,
simple_grpc_shm_client, their string forms, and reuse_infer_objects_client."""

import contextlib
import os
import unittest
import uuid

import numpy
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import serialized_byte_size, serialize_byte_tensor

import fixture


class SharedMemory(fixture.Sync):
    @contextlib.contextmanager
    def region(self, name, size):
        """A region that is registered by a name, which other tests do not use."""
        name = f"{name}-{self.protocol}"
        key = f"/shoal-clients-{uuid.uuid4().hex}"
        handle = shm.create_shared_memory_region(name, key, size)
        try:
            self.client.register_system_shared_memory(name, key, size)
            yield name, handle
            self.client.unregister_system_shared_memory(name)
        finally:
            shm.destroy_shared_memory_region(handle)
        self.assertFalse(os.path.exists("/dev/shm" + key))

    def shared_input(self, name, shape, datatype, region, size, offset=0):
        tensor = self.lib.InferInput(name, shape, datatype)
        tensor.set_shared_memory(region, size, offset)
        return tensor

    def shared_output(self, name, region, size, offset=0):
        output = self.lib.InferRequestedOutput(name)
        output.set_shared_memory(region, size, offset)
        return output

    def test_numbers(self):
        rows = fixture.rows_of(1, 2)
        with self.region("in", rows.nbytes) as (source, written), self.region("out", rows.nbytes + 16) as (target, result):
            shm.set_shared_memory_region(written, [rows])
            inputs = [self.shared_input("IN", list(rows.shape), "FP32", source, rows.nbytes)]
            outputs = [self.shared_output("OUT", target, rows.nbytes, offset=16)]
            answer = self.client.infer("echo", inputs, outputs=outputs)
            self.assertIsNotNone(answer.get_output("OUT"))
            numpy.testing.assert_array_equal(shm.get_contents_as_numpy(result, rows.dtype, rows.shape, offset=16), rows)
            numpy.testing.assert_array_equal(shm.get_contents_as_numpy(result, numpy.uint8, [16]), 0)
            # The input alone may be there, and the client uses the region again.
            shm.set_shared_memory_region(written, [2 * rows])
            numpy.testing.assert_array_equal(self.client.infer("echo", inputs).as_numpy("OUT"), 2 * rows)

    @fixture.onnx
    def test_strings(self):
        strings = numpy.array([[b"a\x00b"], ["grüße".encode()]], dtype=object)
        serialized = serialize_byte_tensor(strings)
        size = serialized_byte_size(serialized)
        with self.region("strings-in", size) as (source, written), self.region("strings-out", size) as (target, result):
            shm.set_shared_memory_region(written, [serialized])
            inputs = [self.shared_input("in", [2, 1], "BYTES", source, size)]
            self.client.infer("strings", inputs, outputs=[self.shared_output("out", target, size)])
            self.assertEqual(shm.get_contents_as_numpy(result, numpy.object_, [2, 1]).tolist(), strings.tolist())

    def test_objects_are_used_again_with_and_without(self):
        rows = fixture.rows_of(7)
        tensor, output = self.lib.InferInput("IN", list(rows.shape), "FP32"), self.lib.InferRequestedOutput("OUT")
        with self.region("reused", 2 * rows.nbytes) as (name, handle):
            for factor in (1, 2, 3):
                tensor.set_data_from_numpy(factor * rows)
                output.unset_shared_memory()
                result = self.client.infer("echo", [tensor], outputs=[output])
                numpy.testing.assert_array_equal(result.as_numpy("OUT"), factor * rows)
                shm.set_shared_memory_region(handle, [-factor * rows])
                tensor.set_shared_memory(name, rows.nbytes)
                output.set_shared_memory(name, rows.nbytes, rows.nbytes)
                self.client.infer("echo", [tensor], outputs=[output])
                found = shm.get_contents_as_numpy(handle, rows.dtype, rows.shape, offset=rows.nbytes)
                numpy.testing.assert_array_equal(found, -factor * rows)

    def test_regions_are_listed(self):
        with self.region("listed", 64) as (name, _):
            status = self.plain(self.client.get_system_shared_memory_status())
            regions = status.get("regions", {}).values() if isinstance(status, dict) else status
            self.assertIn((name, 64), [(r["name"], int(r["byte_size"])) for r in regions])
            with self.assertRaisesRegex(fixture.InferenceServerException, "already in manager"):
                self.client.register_system_shared_memory(name, "/other", 64)
        with self.assertRaisesRegex(fixture.InferenceServerException, "Unable to find system shared memory region"):
            self.client.get_system_shared_memory_status(name)

    def test_mistakes_have_tritons_words(self):
        with self.assertRaisesRegex(fixture.InferenceServerException, "Unable to open shared memory region: '/shoal-clients-missing'"):
            self.client.register_system_shared_memory("missing", "/shoal-clients-missing", 64)
        with self.region("small", 16) as (name, _):
            with self.refused("INVALID_ARGUMENT", f"Invalid offset + byte size for shared memory region: '{name}'"):
                self.client.infer("echo", [self.shared_input("IN", [1, 4], "FP32", name, 17)])
            with self.refused("INVALID_ARGUMENT", f"Invalid offset for shared memory region: '{name}'"):
                self.client.infer("echo", [self.shared_input("IN", [1, 4], "FP32", name, 16, 16)])
            with self.refused("INVALID_ARGUMENT", "should be at least 32 bytes to hold the results"):
                self.client.infer("echo", self.rows(1, 2), outputs=[self.shared_output("OUT", name, 16)])
        with self.refused("NOT_FOUND", "Unable to find shared memory region: 'nowhere'"):
            self.client.infer("echo", [self.shared_input("IN", [1, 4], "FP32", "nowhere", 16)])


class SharedMemoryHTTP(SharedMemory, fixture.HTTP, unittest.TestCase):
    pass


class SharedMemoryGRPC(SharedMemory, fixture.GRPC, unittest.TestCase):
    pass
