"""The clients for asyncio."""

import asyncio
import unittest

import numpy

import fixture


class Aio:
    async def asyncSetUp(self):
        self.client = self.aio.InferenceServerClient(self.address())
        self.addAsyncCleanup(self.client.close)

    async def test_catalog(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("echo"))
        self.assertEqual(self.plain(await self.client.get_server_metadata())["name"], "shoal")
        self.assertEqual(self.plain(await self.client.get_model_metadata("echo"))["name"], "echo")
        config = self.plain(await self.client.get_model_config("echo"))
        self.assertEqual(config.get("config", config)["name"], "echo")
        self.assertEqual(self.plain(await self.client.get_inference_statistics("echo"))["model_stats"][0]["name"], "echo")
        index = self.plain(await self.client.get_model_repository_index())
        self.assertIn("echo", [m["name"] for m in (index if isinstance(index, list) else index["models"])])

    async def test_requests_share_batches(self):
        before = self.executions(await self.client.get_inference_statistics("slow"))
        results = await asyncio.gather(*(self.client.infer("slow", self.rows(i), request_id=str(i)) for i in range(32)))
        for i, result in enumerate(results):
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(i))
            self.assertEqual(self.plain(result.get_response())["id"], str(i))
        executions = self.executions(await self.client.get_inference_statistics("slow")) - before
        self.assertLess(executions, 16, "32 requests make 5 batches or so")

    async def test_requests_are_compressed(self):
        result = await self.client.infer("echo", self.rows(1), **self.compression)
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), fixture.rows_of(1))

    async def test_refusals(self):
        with self.refused("NOT_FOUND", "'nosuch'"):
            await self.client.infer("nosuch", self.rows(1))
        with self.refused("INVALID_ARGUMENT", "batch-size must be <= 8"):
            await self.client.infer("echo", self.rows(*range(9)))


class AioHTTP(Aio, fixture.HTTP, unittest.IsolatedAsyncioTestCase):
    compression = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}


class AioGRPC(Aio, fixture.GRPC, unittest.IsolatedAsyncioTestCase):
    compression = {"compression_algorithm": "gzip"}

    async def test_stream(self):
        async def requests():
            for i in range(8):
                yield {"model_name": "echo", "inputs": self.rows(i), "request_id": str(i)}

        ids = []
        async for result, error in self.client.stream_infer(requests()):
            if error:
                raise error
            ids.append(result.get_response().id)
        self.assertEqual(ids, [str(i) for i in range(8)])
