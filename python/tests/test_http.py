"""Calls over HTTP to servers that answer as the test says."""

import asyncio
import contextlib
import http.server
import json
import os
import threading
import unittest

import numpy

import serving
import shoal
from shoal import _model

DESCRIPTION = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1]}], "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1]}]}
OUTPUT = {"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}]}


@contextlib.contextmanager
def answering(answer):
    """Runs a server that describes a model, and answers other requests with the status and the document that answer returns for their path. Yields its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, document = (200, DESCRIPTION) if self.path == "/v2/models/model" else answer(self.path)
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class OverHTTP(unittest.TestCase):
    def test_an_event_loop_has_many_calls_in_flight(self):
        together = threading.Barrier(100)

        def answer(_):
            try:
                together.wait(serving.PATIENCE)
            except threading.BrokenBarrierError:
                return 500, {"error": f"{together.parties} requests were not in flight at once"}
            return 200, OUTPUT

        async def many(model):
            return await asyncio.gather(*[model.forward_async([]) for _ in range(together.parties)])

        with answering(answer) as url:
            model = shoal.load("model", url=url)
            self.assertEqual(len(asyncio.run(many(model))), together.parties)
            model.close()
            serving.await_(lambda: not any(thread.name.startswith("shoal-http") for thread in threading.enumerate()), "the threads to end")

    def test_a_forked_process_has_threads_of_its_own(self):
        with answering(lambda _: (200, OUTPUT)) as url:
            model = shoal.load("model", url=url)
            asyncio.run(model.forward_async([]))
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio.run(asyncio.wait_for(model.forward_async([]), serving.PATIENCE))
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            model.close()

    def test_what_proxies_answer_for_servers_is_no_defect(self):
        for status, kind in {408: shoal.DeadlineError, 502: shoal.UnavailableError, 503: shoal.UnavailableError, 504: shoal.DeadlineError}.items():
            with self.subTest(status), answering(lambda _: (status, b"<html>")) as url:
                model = shoal.load("model", url=url)
                self.addCleanup(model.close)
                with self.assertRaisesRegex(kind, "<html>"):
                    model.forward([])

    def test_load_does_not_wait_where_its_credential_is_refused(self):
        for status, kind in {401: shoal.UnauthenticatedError, 403: shoal.ForbiddenError}.items():
            asked = []

            def answer(path):
                asked.append(path)
                return status, {"error": "no"}

            with self.subTest(status), answering(answer) as url:
                with self.assertRaisesRegex(kind, "no"):
                    shoal.load("other", url=url, timeout=serving.PATIENCE)
                self.assertEqual(asked, ["/v2/models/other"])

    def test_numbers_in_lists_are_not_changed_by_their_conversion(self):
        for datatype, right, wrong in (
            ("UINT8", [255, 0], ([300], [-1], [numpy.int64(300)], [1.5], [1.0], 1.5)),
            ("INT64", [-(2**63)], ([2**63], [1.7], [[1], [1.7]], [numpy.float32(1.7)], [float("nan")])),
            ("UINT64", [2**64 - 1, 0], ([2**64], [-1], [2**63, 0.5])),
            ("BOOL", [True, 0, 1], ([0.5],)),
            ("FP32", [1, 0.5, True], ([10**400],)),
        ):
            tensor = shoal.Tensor("IN", datatype, (-1,))
            self.assertEqual(_model._array(right, tensor).tolist(), right)
            self.assertEqual(_model._array([], tensor).tolist(), [])
            for numbers in wrong:
                with self.subTest(datatype, numbers=numbers), self.assertRaises(shoal.InvalidError):
                    _model._array(numbers, tensor)

    def test_an_answer_that_is_not_kserve_is_an_internal_error(self):
        fine = OUTPUT["outputs"][0]
        for answer in (
            b"<html>", b"\xff", {}, [], {"outputs": [{**fine, "datatype": "FP12"}]}, {"outputs": [{**fine, "shape": [3]}]}, {"outputs": [{}]}, {"outputs": [1]},
            {"outputs": [{**fine, "shape": "x"}]}, {"outputs": [{**fine, "shape": [2], "parameters": {"binary_data_size": 8}}]}, {"outputs": [{**fine, "parameters": 1}]},
        ):  # fmt: skip
            with self.subTest(answer), answering(lambda _, answer=answer: (200, answer)) as url:
                model = shoal.load("model", url=url)
                self.addCleanup(model.close)
                with self.assertRaisesRegex(shoal.InternalError, f"^{url}: the response is not valid KServe v2: "):
                    model.forward([])
        for answer in (b"<html>", {}, [], {"inputs": []}):
            with self.subTest(answer), answering(lambda _, answer=answer: (200, answer)) as url:
                with self.assertRaisesRegex(shoal.InternalError, f"^{url}: the response is not valid KServe v2: "):
                    shoal.load("other", url=url)

    def test_a_server_without_binary_tensors_is_unsupported(self):
        with answering(lambda _: (200, {"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1], "data": [1.5]}]})) as url:
            model = shoal.load("model", url=url)
            self.addCleanup(model.close)
            with self.assertRaisesRegex(shoal.UnsupportedError, "output OUT as JSON"):
                model.forward([])


if __name__ == "__main__":
    unittest.main()
