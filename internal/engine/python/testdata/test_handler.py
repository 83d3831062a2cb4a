"""Tests of what runs handlers and needs no server."""

import contextlib
import io
import sys
import types
import unittest

import shoal_handler as handler
from shoal_wire import U32


def message(headers, parts):
    """A request as the server writes it."""
    lines = b"".join(b"%s\n%s\n" % pair for pair in headers)
    out = U32.pack(len(lines)) + lines + U32.pack(len(parts))
    for one in [x for part in parts for x in part]:
        out += U32.pack(len(one)) + one
    return memoryview(out)


class Requests(unittest.TestCase):
    def test_parts_are_decoded_by_their_type(self):
        parts, headers = handler.unpack(message([(b"X-Id", b"7")], [
            (b"body", b"application/json", b"[1]"), (b"text", b"text/plain", "ü".encode()), (b"data", b"image/png", b"\0\xff"), (b"wrong", b"application/json", b"["),
        ]), True)
        self.assertEqual(parts, {"body": [1], "text": "ü", "data": bytearray(b"\0\xff"), "wrong": bytearray(b"[")})
        self.assertEqual(headers["text"], {"content-type": "text/plain"})
        self.assertEqual(headers.get("x-id"), "7")
        self.assertIsNone(headers.get("absent"))

    def test_json_that_is_nested_too_deeply_is_not_decoded(self):
        text = b"[" * 100_000
        self.assertEqual(handler.value("application/json", text, True), bytearray(text))

    def test_nothing_is_decoded_if_that_is_not_wanted(self):
        parts, _ = handler.unpack(message([], [(b"body", b"application/json", b"[1]")]), False)
        self.assertEqual(parts, {"body": bytearray(b"[1]")})

    def test_answers_are_bytes_texts_or_json(self):
        self.assertEqual(handler.encoded(b"\xff"), b"\xff")
        self.assertEqual(handler.encoded("ü"), "ü".encode())
        self.assertEqual(handler.encoded({"a": 1}), b'{\n  "a": 1\n}')
        with self.assertRaises(TypeError):
            handler.encoded(object())

    def test_an_answer_may_be_a_tensor(self):
        torch = types.ModuleType("torch")
        torch.Tensor, torch.save = complex, lambda tensor, file: file.write(b"saved")
        sys.modules["torch"] = torch
        self.addCleanup(sys.modules.pop, "torch")
        self.assertEqual(handler.encoded(1j), b"saved")


class Entries(unittest.TestCase):
    def entry(self, text, said="service"):
        module = types.ModuleType("service")
        exec(text, module.__dict__)  # as if it had been imported
        sys.modules["service"] = module
        self.addCleanup(sys.modules.pop, "service", None)
        return handler.entry(said, "context")

    def test_a_function_is_called_once_with_nothing(self):
        handle = self.entry("calls = []\ndef handle(data, context):\n    calls.append(data)\n    return calls")
        self.assertEqual(handle([1], None), [None, [1]])
        self.assertEqual(self.entry("def other(data, context):\n    return data", "some/service.py:other")([2], None), [2])

    def test_a_function_goes_before_a_class(self):
        self.assertEqual(self.entry("class A:\n    def handle(self, data, context): return 1\ndef handle(data, context): return 2")([], None), 2)

    def test_the_one_class_that_can_handle_is_taken(self):
        handle = self.entry("class Helper: pass\nclass Service:\n    def initialize(self, context): self.said = context\n    def handle(self, data, context): return self.said")
        self.assertEqual(handle([], None), "context")

    def test_steps_are_taken_one_after_the_other(self):
        handle = self.entry("class S:\n    def preprocess(self, d): return d + ['pre']\n    def inference(self, d): return d + ['in']\n    def postprocess(self, d): return d + ['post']")
        self.assertEqual(handle(["x"], None), ["x", "pre", "in", "post"])

    def test_what_cannot_be_told_is_refused(self):
        for text in "x = 1", "class A:\n    def handle(self, d, c): pass\nclass B(A): pass":
            with self.assertRaisesRegex(ValueError, "expected the function or one class"):
                self.entry(text)


class StandIns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        handler.register_stand_ins()

    def test_names_are_there_that_handlers_import(self):
        from mms.context import Context
        from mms.metrics.metrics_store import MetricsStore
        from ts.utils.util import PredictionException

        self.assertEqual(str(PredictionException("wrong", 513)), "wrong : 513")
        self.assertEqual(Context("m", "/m", {}, 8, None, "1").system_properties["batch_size"], 8)
        MetricsStore(None, "m").add_counter("Count", 1)

    def test_metrics_of_torchserve_are_written_and_wrong_ones_fail_nothing(self):
        from ts.metrics.dimension import Dimension
        from ts.metrics.metric_type_enum import MetricTypes
        from ts.metrics.metrics_store import MetricsStore

        store = MetricsStore(None, "m")
        store.add_metric_to_cache("Hits", "count", ["Kind"])
        store.add_metric_to_cache("Room", "MB", metric_type=MetricTypes.GAUGE)
        hits, room = store.get_metric("Hits"), store.get_metric("Room", MetricTypes.GAUGE)
        with contextlib.redirect_stdout(io.StringIO()) as out, self.assertLogs(handler.log, "ERROR") as logged:
            hits.add_or_update(2, ["cat"], "id")
            hits.update(1, "id", [Dimension("Kind", "dog")])
            room.update(-1)
            hits.add_or_update(1)
            hits.update(-1)
        self.assertEqual(out.getvalue().splitlines(), [
            "[METRICS]Hits.count:2|#ModelName:m,Kind:cat", "[METRICS]Hits.count:1|#ModelName:m,Kind:dog", "[METRICS]Room.MB:-1|#ModelName:m"])
        self.assertEqual([r.getMessage() for r in logged.records], [
            "metric Hits: found the dimension values [], expected one for each of ['Kind']", "metric Hits: found -1, expected a counter not to fall"])
        with self.assertRaisesRegex(KeyError, "create it with add_metric_to_cache"):
            store.get_metric("Room")


if __name__ == "__main__":
    unittest.main()
