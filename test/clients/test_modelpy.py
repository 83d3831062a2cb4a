"""What Python models answer is what they answered in a real Triton, as far as modelpy.json has it recorded."""

import contextlib
import json
import shutil
import unittest

import modelpy
import shoal


@contextlib.contextmanager
def side_of(server):
    """A server to ask, until it is stopped."""
    try:
        side = modelpy.Side(server.http, server.grpc, server.metrics, server.models, server.text)
        try:
            yield side
        finally:
            side.close()
    finally:
        server.stop()


@contextlib.contextmanager
def serving():
    """bin/shoal with the models."""
    repository = shoal.Repository()
    try:
        shutil.copytree(modelpy.MODELS, repository.path, dirs_exist_ok=True)  # Python writes beside its files
        server = shoal.Server(repository.path, "--model-control-mode", "explicit", "--triton-status", "--batching", "triton", "--allow-model-uploads", python=shoal.PYTHON)
        server.models = repository.path
        with side_of(server) as side:
            yield side
    finally:
        repository.remove()


@unittest.skipUnless(shoal.PYTHON.exists(), "there is no interpreter with numpy in bin/worker; make numpy brings it")
class TestModelPy(unittest.TestCase):
    maxDiff = None

    def test_models_answer_as_in_triton(self):
        recorded = json.loads(modelpy.ANSWERS.read_text())
        different = json.loads(modelpy.DIFFERENT.read_text())
        self.assertEqual(set(recorded), set(modelpy.cases), "make measure WHAT=python-beside-triton with --record")
        self.assertLessEqual(set(different), set(recorded))
        with serving() as side:
            for name, ask in modelpy.cases.items():
                with self.subTest(name):
                    expected = different[name]["here"] if name in different else recorded[name]
                    self.assertEqual(json.loads(json.dumps(ask(side))), expected)
