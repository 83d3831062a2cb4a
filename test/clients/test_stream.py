"""Streams of requests over gRPC."""

import queue
import unittest

import numpy

import fixture


class Stream(fixture.Sync, fixture.GRPC, unittest.TestCase):
    def setUp(self):
        super().setUp()
        fixture.need_streams(self)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))
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
