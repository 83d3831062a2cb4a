"""Streams of requests over gRPC."""

import queue
import unittest

import numpy

import fixture


class Stream(fixture.Sync, fixture.GRPC, unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.start()

    def start(self, **options):
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)), **options)
        self.addCleanup(self.client.stop_stream, cancel_requests=True)

    def answer(self):
        result, error = self.answers.get(timeout=30)
        if error:
            raise error
        return result

    def test_answers_come_in_order(self):
        for i in range(16):
            self.client.async_stream_infer("echo", self.rows(i), request_id=str(i))
        for i in range(16):
            result = self.answer()
            self.assertEqual(result.get_response().id, str(i))
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(i))

    def test_an_error_does_not_end_the_stream(self):
        self.client.async_stream_infer("nosuch", self.rows(1))
        with self.assertRaisesRegex(fixture.InferenceServerException, "nosuch"):
            self.answer()
        self.client.async_stream_infer("echo", self.rows(2))
        numpy.testing.assert_array_equal(self.answer().as_numpy("OUT"), fixture.rows_of(2))

    def test_the_last_answer_says_so(self):
        self.client.async_stream_infer("echo", self.rows(1), enable_empty_final_response=True)
        self.assertTrue(self.answer().get_response().parameters["triton_final_response"].bool_param)

    @fixture.onnx
    def test_an_error_ends_the_stream_if_the_client_wants_it(self):
        """Requests behind and before it, and many times: this has killed servers."""

        def ask(index):
            self.client.async_stream_infer("fail_if", [self.input("index", numpy.array([[index]], dtype=numpy.int64), "INT64")])

        for _ in range(10):
            self.client.stop_stream()
            self.start(headers={"triton_grpc_error": "true"})
            for index in (0, 99, 0):
                try:
                    ask(index)
                except fixture.InferenceServerException:
                    break  # the stream has ended already
            self.answer()
            with self.refused("INVALID_ARGUMENT", "idx=99"):
                self.answer()
        self.assertTrue(self.client.is_server_live())
