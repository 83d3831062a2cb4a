"""The settings of logs and traces that clients may change."""

import unittest

import fixture


class Settings(fixture.Sync):
    def test_log_settings(self):
        before = self.plain(self.client.get_log_settings())
        self.assertIn("log_verbose_level", before.get("settings", before))
        self.client.update_log_settings({"log_verbose_level": 0})

    def test_trace_settings(self):
        found = self.plain(self.client.get_trace_settings())
        self.assertIn("trace_level", found.get("settings", found))


class SettingsHTTP(Settings, fixture.HTTP, unittest.TestCase):
    pass


class SettingsGRPC(Settings, fixture.GRPC, unittest.TestCase):
    pass
