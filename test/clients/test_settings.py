"""Shared memory, and the settings of logs and traces that clients may change."""

import unittest

import numpy
from tritonclient.utils import shared_memory

import fixture


class Settings(fixture.Sync):
    @fixture.awaits("log settings")
    def test_log_settings(self):
        before = self.plain(self.client.get_log_settings())
        self.assertIn("log_verbose_level", before.get("settings", before))
        self.client.update_log_settings({"log_verbose_level": 0})

    @fixture.awaits("trace settings")
    def test_trace_settings(self):
        found = self.plain(self.client.get_trace_settings())
        self.assertIn("trace_level", found.get("settings", found))

    @fixture.awaits("shared memory")
    def test_tensors_in_shared_memory(self):
        rows = fixture.rows_of(1, 2)
        region = f"shoal_{self.protocol}"
        memory = shared_memory.create_shared_memory_region(region, "/" + region, 2 * rows.nbytes)
        self.addCleanup(shared_memory.destroy_shared_memory_region, memory)
        shared_memory.set_shared_memory_region(memory, [rows])
        self.client.register_system_shared_memory(region, "/" + region, 2 * rows.nbytes)
        self.addCleanup(self.client.unregister_system_shared_memory, region)
        tensor = self.lib.InferInput("IN", list(rows.shape), "FP32")
        tensor.set_shared_memory(region, rows.nbytes)
        output = self.lib.InferRequestedOutput("OUT")
        output.set_shared_memory(region, rows.nbytes, offset=rows.nbytes)
        self.client.infer("echo", [tensor], outputs=[output])
        found = shared_memory.get_contents_as_numpy(memory, numpy.float32, rows.shape, offset=rows.nbytes)
        numpy.testing.assert_array_equal(found, rows)


class SettingsHTTP(Settings, fixture.HTTP, unittest.TestCase):
    pass


class SettingsGRPC(Settings, fixture.GRPC, unittest.TestCase):
    pass
