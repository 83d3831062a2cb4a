"""Calls over the local socket and over HTTP, which must behave the same."""

import asyncio
import errno
import gc
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import unittest
import unittest.mock

import numpy

import serving
import shoal
from shoal import _wire
from shoal._http import HTTP
from shoal._local import Connection


def setUpModule():
    global folder, server
    if not serving.library():
        raise unittest.SkipTest("needs ONNX Runtime: run make onnxruntime")
    folder = tempfile.TemporaryDirectory(prefix="shoal-python-")
    server = serving.Server(pathlib.Path(folder.name))


def tearDownModule():
    status = server.stop()
    log = server.log()
    folder.cleanup()
    assert status == 0, f"the server ended with status {status}\n{log}"


def rows(count, width=4, first=0.0):
    return (numpy.arange(count * width, dtype=numpy.float32) + numpy.float32(first)).reshape(count, width)


class Calls:
    """Tests of both transports."""

    url = ""

    def load(self, name, version=""):
        model = shoal.load(name, url=self.url, version=version)
        self.addCleanup(model.close)
        return model

    def test_a_model_describes_its_inputs(self):
        model = self.load("negate")
        self.assertEqual(model.inputs, (shoal.Tensor("x", "FP32", (-1, -1)),))
        self.assertEqual(repr(model), "<shoal.Model negate: x FP32[-1, -1] -> y FP32[-1, -1]>")

    def test_a_version_describes_itself(self):
        self.assertEqual(self.load("negate", "1").inputs, self.load("negate").inputs)
        with self.assertRaises(shoal.NotFoundError):
            self.load("negate", "7")

    def test_arrays_of_any_kind_are_taken(self):
        model = self.load("negate")
        for array in (
            rows(1), rows(8), rows(1, 1), rows(2, 40_000), rows(8, 300_000), rows(1),
            rows(4, 8)[:, ::2], rows(4, 4).T, rows(2).astype(">f4"), numpy.zeros((1, 0), numpy.float32),
        ):  # fmt: skip
            with self.subTest(shape=array.shape, strides=array.strides):
                got = model.forward(array)
                self.assertEqual(got.dtype, numpy.float32)
                numpy.testing.assert_array_equal(got, -array)

    def test_lists_are_converted_to_the_models_type(self):
        numpy.testing.assert_array_equal(self.load("negate").forward([[1, 2]]), numpy.array([[-1, -2]], numpy.float32))

    def test_arrays_that_are_kept_keep_their_values(self):
        model = self.load("negate")
        kept = [model.forward(rows(1, 30_000, n)) for n in range(40)]
        for n, array in enumerate(kept):
            numpy.testing.assert_array_equal(array, -rows(1, 30_000, n))
            array[:] = 0  # no other array shares the memory

    def test_many_threads_get_their_own(self):
        model = self.load("negate")
        right, wrong = [], []

        def loop(n):
            try:
                for i in range(40):
                    width = 4 if i % 2 else 20_000
                    same = numpy.array_equal(model.forward(rows(1, width, 100 * n + i)), -rows(1, width, 100 * n + i))
                    (right if same else wrong).append((n, i))
            except BaseException as e:  # which the thread would take with it
                wrong.append((n, e))

        threads = [threading.Thread(target=loop, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(len(right), 16 * 40)

    def test_many_tasks_get_their_own(self):
        model = self.load("negate")

        async def all_of_them():
            return await asyncio.gather(*[model.forward_async(rows(1, 5_000 if n % 2 else 20_000, n)) for n in range(300)])

        for _ in range(2):  # each has an event loop of its own
            for n, got in enumerate(asyncio.run(all_of_them())):
                numpy.testing.assert_array_equal(got, -rows(1, 5_000 if n % 2 else 20_000, n))

    def test_a_forked_process_has_connections_of_its_own(self):
        model = self.load("negate")
        model.forward(rows(1, 30_000))
        children = []
        for n in range(4):
            pid = os.fork()
            if pid == 0:
                right = all(numpy.array_equal(model.forward(rows(1, 30_000, n + i)), -rows(1, 30_000, n + i)) for i in range(30))
                os._exit(0 if right else 1)
            children.append(pid)
        for i in range(30):
            numpy.testing.assert_array_equal(model.forward(rows(1, 30_000, i)), -rows(1, 30_000, i))
        self.assertEqual([os.waitpid(pid, 0)[1] for pid in children], [0] * 4)

    def test_errors_have_the_servers_message(self):
        model = self.load("negate")
        with self.assertRaisesRegex(shoal.NotFoundError, "Request for unknown model: 'nobody' is not found"):
            shoal.load("nobody", url=self.url)
        with self.assertRaisesRegex(shoal.InvalidError, "x"):
            model.forward(numpy.zeros((1, 2), numpy.int64))
        with self.assertRaisesRegex(shoal.InvalidError, "batch"):
            model.forward(rows(9))
        with self.assertRaisesRegex(shoal.InvalidError, "nothing"):
            model.run({"x": rows(1)}, ["nothing"])
        with self.assertRaisesRegex(shoal.InvalidError, "found 2 arrays, expected 1: x"):
            model.forward(rows(1), rows(1))
        with self.assertRaisesRegex(shoal.InvalidError, "expected numbers, booleans or strings"):
            model.forward(numpy.zeros((1, 1), numpy.complex64))
        with self.assertRaises(ValueError):  # InvalidError is also a ValueError
            model.forward(rows(9))
        numpy.testing.assert_array_equal(model.forward(rows(1)), -rows(1))

    def test_a_full_queue_is_an_overloaded_error(self):
        model = self.load("full")
        seen = []

        def ask():
            try:
                model.forward(rows(8))
                seen.append(None)
            except shoal.Error as e:
                seen.append(e)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [e for e in seen if e is not None]
        self.assertTrue(1 <= len(refused) <= 5, seen)
        for e in refused:
            self.assertIsInstance(e, shoal.OverloadedError)

    def test_models_with_many_inputs_and_outputs(self):
        model = self.load("add_sub")
        a, b = rows(2, 16), rows(2, 16, 5)
        both = model.run({"INPUT0": a, "INPUT1": b})
        numpy.testing.assert_array_equal(both["OUTPUT0"], a + b)
        numpy.testing.assert_array_equal(both["OUTPUT1"], a - b)
        self.assertEqual(list(model.run({"INPUT1": b, "INPUT0": a}, ["OUTPUT1"])), ["OUTPUT1"])
        numpy.testing.assert_array_equal(model.forward(a, b, output="OUTPUT1"), a - b)
        with self.assertRaisesRegex(shoal.InvalidError, "name one of OUTPUT0, OUTPUT1"):
            model.forward(a, b)

    def test_strings_are_bytes_of_any_kind(self):
        model = self.load("strings")
        for array in (numpy.array(["ab", "ü"]), numpy.array([b"a\0b", b""], object), numpy.array([b"xyz", b"a"])):
            got = model.forward(array.reshape(2, 1))
            want = [e if isinstance(e, bytes) else e.encode() for e in array.tolist()]
            self.assertEqual(got.ravel().tolist(), want)

    def test_strings_in_lists_keep_their_zeros(self):
        model = self.load("strings")
        for texts in ([[b"a\0b\0\0"], [b"\0"]], [["ü\0"], ["ab"]]):
            want = [e if isinstance(e, bytes) else e.encode() for row in texts for e in row]
            self.assertEqual(model.forward(texts).ravel().tolist(), want)
        with self.assertRaises(shoal.InvalidError):
            model.forward([["a", "b"], ["c"]])

    def test_strings_are_not_kept_after_their_call(self):
        model = self.load("strings")
        model.forward([["a"]])
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for n in range(8):
            model.forward([[str(n) * (1 << 20)]])
        self.assertLess(tracemalloc.get_traced_memory()[0], 1 << 20)

    def test_values_that_cannot_be_sent_are_invalid(self):
        model = self.load("echo")
        for priority in (-1, 1 << 64, 0.5, None, "high"):
            with self.subTest(priority=priority), self.assertRaisesRegex(shoal.InvalidError, "^priority: found"):
                model.forward(rows(1), priority=priority)
        model.forward(rows(1), priority=numpy.int64(1))
        for timeout in (float("inf"), float("nan"), 1e18):
            with self.subTest(timeout=timeout), self.assertRaisesRegex(shoal.InvalidError, "^timeout: found"):
                model.forward(rows(1), timeout=timeout)
        half = "\ud800"  # of a character
        with self.assertRaisesRegex(shoal.InvalidError, "UTF-8"):
            self.load("strings").forward([[half]])
        for name in (half, "echo"):
            with self.assertRaises(shoal.InvalidError):
                model.run({name: rows(1)}, [half])
        with self.assertRaisesRegex(shoal.InvalidError, "UTF-8"):
            self.load(half)

    def test_load_may_wait_for_ever(self):
        model = shoal.load("echo", url=self.url, timeout=float("inf"))
        self.addCleanup(model.close)
        self.assertEqual(model.name, "echo")

    def test_a_timeout_that_has_passed_is_a_deadline_error(self):
        model = self.load("echo")
        for timeout in (0, -1, -100, float("-inf")):
            with self.subTest(timeout=timeout), self.assertRaises((shoal.DeadlineError, shoal.LateError)):
                model.forward(rows(1), timeout=timeout)
        numpy.testing.assert_array_equal(model.forward(rows(1), timeout=1_000_000), rows(1))

    def test_every_type_comes_back(self):
        model = self.load("types")
        names = {"BYTES": "object", "BOOL": "bool", "FP32": "float32", "FP64": "float64"}
        inputs = {
            t.name: numpy.full((2, 3), b"one" if t.datatype == "BYTES" else 1, names.get(t.datatype, t.datatype.lower())) for t in model.inputs
        }
        got = model.run(inputs)
        self.assertEqual(len(got), 12)
        for name, want in inputs.items():
            found = got[name.replace("in_", "out_")]
            self.assertEqual(found.dtype, want.dtype, name)
            numpy.testing.assert_array_equal(found, want, name)


class OverTheSocket(Calls, unittest.TestCase):
    @property
    def url(self):
        return "unix:" + server.socket

    def test_a_timeout_is_kept(self):
        model = self.load("slow")
        began = time.monotonic()
        with self.assertRaises((shoal.DeadlineError, shoal.LateError)):  # when it has passed, or earlier if the server knows that it will
            model.forward(rows(1), timeout=0.02)
        self.assertLess(time.monotonic() - began, serving.PATIENCE)
        numpy.testing.assert_array_equal(model.forward(rows(1), timeout=serving.PATIENCE), rows(1))

    def test_a_call_that_is_too_large_leaves_no_timeout_behind(self):
        model = self.load("echo")
        model.close()  # what earlier tests left
        connection = model._transport._take()
        model._transport._idle.append(connection)
        most, connection._max_shared = connection._max_shared, 0
        with self.assertRaisesRegex(shoal.InvalidError, "exceed the server's limit"):
            model.forward(rows(1), timeout=serving.PATIENCE)
        connection._max_shared = most
        numpy.testing.assert_array_equal(model.forward(rows(1)), rows(1))
        self.assertIsNone(connection.socket.gettimeout())

    def test_cancelling_a_task_cancels_its_request(self):
        model = self.load("slow")
        model.forward(rows(1))
        before = server.rows_run("slow")

        async def cancelled():
            first = asyncio.ensure_future(model.forward_async(rows(1)))
            await asyncio.sleep(0.1)  # it runs for 0.3 seconds
            with self.assertRaises(asyncio.TimeoutError):  # it waits behind the first
                await asyncio.wait_for(model.forward_async(rows(1)), 0.02)
            await first
            return await model.forward_async(rows(1))

        numpy.testing.assert_array_equal(asyncio.run(cancelled()), rows(1))
        self.assertEqual(server.rows_run("slow") - before, 2, "the one that was cancelled has run")

    def test_a_call_beyond_a_limit_does_not_abort_the_others_of_its_event_loop(self):
        slow, echo = self.load("slow"), self.load("echo")

        async def both():
            call = asyncio.ensure_future(slow.forward_async(rows(1)))
            (connection,) = await self.connections(slow)
            while not connection.waiting:
                await asyncio.sleep(0.001)
            with self.assertRaisesRegex(shoal.InvalidError, "^limit of dimensions exceeded: found at least 9, allowed are 8$"):
                await echo.forward_async(numpy.zeros((1,) * 9, numpy.float32))
            return await call

        numpy.testing.assert_array_equal(asyncio.run(both()), rows(1))

    def test_a_call_without_a_descriptor_for_its_memory_does_not_abort_the_others(self):
        model = self.load("slow")

        async def both():
            call = asyncio.ensure_future(model.forward_async(rows(1)))
            (connection,) = await self.connections(model)
            while not connection.waiting:
                await asyncio.sleep(0.001)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            try:
                with self.assertRaisesRegex(shoal.UnavailableError, "this process could not create 131072 bytes of shared memory: .*Too many open files"):
                    await model.forward_async(rows(1))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return await call

        numpy.testing.assert_array_equal(asyncio.run(both()), rows(1))

    def test_closing_a_model_does_not_abort_the_calls_of_others(self):
        model, other = self.load("slow"), self.load("echo")

        async def closed_meanwhile():
            calls = [asyncio.ensure_future(model.forward_async(rows(1, first=n))) for n in range(2)]
            (connection,) = await self.connections(model)
            while len(connection.waiting) < 2:
                await asyncio.sleep(0.001)
            other.close()
            answers = await asyncio.gather(*calls)
            self.assertLess(connection.connection.socket.fileno(), 0)  # closed
            return answers

        for n, got in enumerate(asyncio.run(closed_meanwhile())):
            numpy.testing.assert_array_equal(got, rows(1, first=n))

    def test_a_server_that_does_not_answer_is_a_deadline_error(self):
        model = self.load("echo")

        async def stopped():
            await model.forward_async(rows(1))
            server.process.send_signal(signal.SIGSTOP)
            tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
            while any("\nState:\tT" not in (task / "status").read_text() for task in tasks.iterdir()):
                await asyncio.sleep(0.001)
            try:
                with self.assertRaisesRegex(shoal.DeadlineError, "did not answer within 0.02 s after the timeout of 0.01 s"):
                    await asyncio.wait_for(model.forward_async(rows(1), timeout=0.01), serving.PATIENCE)
            finally:
                server.process.send_signal(signal.SIGCONT)
            return await model.forward_async(rows(1), timeout=serving.PATIENCE)

        with unittest.mock.patch("shoal._local.GRACE", 0.02):
            numpy.testing.assert_array_equal(asyncio.run(stopped()), rows(1))

    def test_a_call_that_waits_for_memory_learns_that_the_server_has_exited(self):
        model = self.load("slow")

        async def exited():
            calls = [asyncio.ensure_future(model.forward_async(rows(1)))]
            (connection,) = await self.connections(model)
            while not connection.waiting:
                await asyncio.sleep(0.001)
            connection.connection._max_shared = 0
            calls.append(asyncio.ensure_future(model.forward_async(rows(1))))
            while connection.users < 2:
                await asyncio.sleep(0.001)
            connection.close()  # as it is when the server's end is closed
            return await asyncio.gather(*calls, return_exceptions=True)

        for error in asyncio.run(exited()):
            self.assertIsInstance(error, shoal.UnavailableError)
            self.assertRegex(str(error), "has exited")

    def test_memory_that_cannot_be_freed_yet_is_freed_later(self):
        class Full:
            """A socket without room for the first FREE."""

            def __init__(self, inner):
                self.inner, self.full = inner, True

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def send(self, message):
                if self.full and _wire.FRAME.unpack_from(message)[0] == _wire.FREE:
                    self.full = False
                    raise BlockingIOError
                return self.inner.send(message)

        connection = Connection(server.socket)
        self.addCleanup(connection.close)
        small = connection.block(1)
        connection._idle.append(small)
        connection.socket = Full(connection.socket)
        with self.assertRaises(BlockingIOError):
            connection.block(small.size + 1)
        self.assertEqual((list(connection._idle), connection._shared), ([small], small.size))
        large = connection.block(small.size + 1)
        self.assertEqual((list(connection._idle), connection._shared), ([], large.size))

    async def connections(self, model):
        """Returns the connections of event loops, once there are any."""
        while not model._transport._async_connections:
            await asyncio.sleep(0.001)
        return list(model._transport._async_connections.values())

    def limited(self, most):
        """Returns a model whose only connection may share most bytes."""
        model = self.load("negate")
        model.close()  # what earlier tests left
        connection = model._transport._take()
        connection._max_shared = most
        model._transport._idle.append(connection)
        return model

    def test_arrays_that_are_kept_leave_memory_for_further_calls(self):
        model = self.limited(8 << 20)  # two times what a call takes
        kept = [model.forward(rows(1, 300_000, n)) for n in range(6)]
        self.assertEqual([array.base is not None for array in kept], [False, True, False, False, False, False])  # the first is larger than was expected
        for n, array in enumerate(kept):
            numpy.testing.assert_array_equal(array, -rows(1, 300_000, n))

    def test_outputs_may_be_larger_than_the_memory_of_a_connection(self):
        model = self.limited(2 << 20)  # less than the inputs and the outputs
        for n in range(3):
            numpy.testing.assert_array_equal(model.forward(rows(1, 300_000, n)), -rows(1, 300_000, n))

    def test_memory_is_reused_after_an_array_is_deleted(self):
        model = self.load("negate")
        model.forward(rows(1, 50_000))  # now the plan knows the size of the outputs
        places = set()
        for n in range(10):
            got = model.forward(rows(1, 50_000, n))
            part = got[:, 10:20]
            self.assertIsNotNone(got.base)  # it is a view
            places.add(got.ctypes.data)
            del got
            numpy.testing.assert_array_equal(part, -rows(1, 50_000, n)[:, 10:20])
            del part
        self.assertEqual(len(places), 1)

    def test_a_client_that_is_killed_in_a_call_leaves_nothing(self):
        gc.collect()
        serving.await_(lambda: server.holds()[1] == 0, "the memory of earlier tests to be freed")
        before = server.holds()
        code = (
            "import numpy, shoal, sys\n"
            f"model = shoal.load('slow', url={self.url!r})\n"
            "print('calling', flush=True)\n"
            "while True: model.forward(numpy.zeros((1, 4), numpy.float32))\n"
        )
        children = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) for _ in range(4)
        ]
        for child in children:
            child.stdout.readline()
        serving.await_(lambda: server.holds()[1] >= before[1] + 4, "the calls to begin")
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.wait()
            child.stdout.close()
        serving.await_(lambda: server.holds()[0] <= before[0] and server.holds()[1] <= before[1], f"the resources of the clients to be freed, down to {before}")

    def test_a_process_keeps_nothing_of_closed_event_loops(self):
        model = self.load("negate")

        async def one():
            await model.forward_async(rows(1))

        asyncio.run(one())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            asyncio.run(one())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 3)

    def test_a_process_keeps_nothing_of_event_loops_with_calls_that_waited(self):
        model = self.load("negate")

        async def many():  # more than a connection has at once
            await asyncio.gather(*[model.forward_async(rows(1)) for _ in range(200)])

        async def leaves():
            asyncio.ensure_future(model.forward_async(rows(1)))
            await asyncio.sleep(0.01)

        asyncio.run(many())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            asyncio.run(many())
            asyncio.run(leaves())
        gc.collect()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 3)


class OverHTTP(Calls, unittest.TestCase):
    @property
    def url(self):
        return server.url

    def test_a_request_that_is_refused_while_it_is_sent_has_the_servers_message(self):
        model = self.load("echo")
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def refuse():
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1024)
                    body = b'{"error":"too many requests"}'
                    connection.sendall(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

            thread = threading.Thread(target=refuse)
            thread.start()
            refused = HTTP(f"http://127.0.0.1:{listener.getsockname()[1]}")
            with self.assertRaisesRegex(shoal.OverloadedError, "too many requests") as caught:
                refused.infer(model._forward((rows(1, 8 << 20),), None, None, 0))
            thread.join()
            self.assertEqual(caught.exception.retry_after, 3)
            refused.close()

    def test_a_host_that_does_not_answer_is_named_in_the_error(self):
        call, unreachable = self.load("echo")._forward((rows(1),), None, None, 0), HTTP("http://localhost:1")
        gone = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))  # of the system: the call has no timeout
        with unittest.mock.patch("socket.create_connection", side_effect=gone):
            with self.assertRaisesRegex(shoal.UnavailableError, "http://localhost:1: .*Connection timed out"):
                unreachable.infer(call)

    def test_a_wrong_url_is_named_in_the_error(self):
        with self.assertRaisesRegex(shoal.UnavailableError, "http://127.0.0.1:1"):
            shoal.load("echo", url="http://127.0.0.1:1")
        with self.assertRaisesRegex(shoal.InvalidError, "expected one such as http://localhost:8000"):
            shoal.load("echo", url="ftp://host")
        for url in ("http://host:abc", "http://host:70000", "http://[::1"):
            with self.assertRaisesRegex(shoal.InvalidError, "expected one such as http://localhost:8000"):
                shoal.load("echo", url=url)


if __name__ == "__main__":
    unittest.main()
