"""Declared models, without a server."""

import importlib.util
import pathlib
import subprocess
import sys
import unittest

import numpy

import serving
import shoal
from shoal import _app

X = {"x": ("FP32", [-1, 3])}
Y = {"y": ("FP32", [-1])}


def total(x):
    return {"y": x.sum(axis=1)}


def example():
    """Imports examples/python/app.py, as a test of that file would."""
    spec = importlib.util.spec_from_file_location("app", serving.ROOT / "examples/python/app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Apps(unittest.TestCase):
    def setUp(self):
        self.addCleanup(_app.declared.clear)

    def test_an_app_is_tested_without_a_server(self):
        app = example()
        self.assertEqual(app.total(numpy.ones((2, 3), numpy.float32))["y"].tolist(), [3, 3])
        with self.assertRaises(shoal.BadInput):
            app.total(numpy.full((1, 3), numpy.nan, numpy.float32))
        self.assertEqual(app.CountWords()(numpy.array([[b"one two"]], object))["words"].tolist(), [[2]])

    def test_an_app_can_be_imported_again(self):
        example()
        example()
        self.assertEqual([d.name for d in _app.declared], ["total", "count_words"] * 2)

    def test_the_decorator_returns_the_function_unchanged(self):
        self.assertIs(shoal.model(X, Y, max_batch=4)(total), total)

    def test_types_may_be_tritons_or_numpys(self):
        for of, name in (
            ("FP32", "FP32"), ("TYPE_INT8", "INT8"), ("BYTES", "STRING"), (str, "STRING"), (bytes, "STRING"), (object, "STRING"), (numpy.float16, "FP16"),
            ("float64", "FP64"), (int, "INT64"), (bool, "BOOL"), (numpy.dtype("<u4"), "UINT32"), (numpy.dtype("S3"), "STRING"),
        ):  # fmt: skip
            self.assertEqual(_app.type_name("", of), name)
        for of in ("FP33", "BF16", numpy.complex64, 7.5):
            with self.assertRaisesRegex(TypeError, "expected a name such as FP32"):
                _app.type_name("", of)

    def test_a_wrong_decorator_says_what_is_wrong(self):
        class Plain:
            pass

        for message, target, arguments in (
            ("inputs: found", total, (["x"], Y)),
            ("expected a type and a shape", total, ({"x": "FP32"}, Y)),
            ("expected -1 first, for the rows of a batch, because max_batch is 2", total, ({"x": ("FP32", [3])}, Y, 2)),
            ("expected sizes of at least 1", total, ({"x": ("FP32", [-1, 0])}, Y, 2)),
            ("at least one", total, ({"x": ("FP32", [])}, Y)),
            ("cannot be called with the inputs z", total, ({"z": ("FP32", [1])}, Y)),
            ("max_batch: found -1", total, (X, Y, -1)),
            ("instances: found 0", total, (X, Y, 1, None, 0)),
            ("found a class without __call__", Plain, (X, Y)),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                shoal.model(*arguments)(target)


class Package(unittest.TestCase):
    def test_the_package_exports_nothing_else(self):
        for name in shoal.__all__:
            getattr(shoal, name)
        self.assertEqual([n for n in vars(shoal) if not n.startswith("_") and n not in shoal.__all__], [])
        self.assertEqual(sorted(shoal.__all__), sorted(dir(shoal)))

    def test_the_package_is_typed(self):
        self.assertTrue(pathlib.Path(shoal.__file__).with_name("py.typed").exists())

    def test_an_app_needs_no_numpy_to_be_imported(self):
        code = (
            "import sys\n"
            "sys.modules['numpy'] = None\n"  # which fails every import of it
            "import shoal\n"
            "@shoal.model(inputs={'x': ('FP32', [1])}, outputs={'y': (str, [1])})\n"
            "def f(x): return x\n"
            "try: shoal.load\n"
            "except ImportError as e: print(e.name)\n"
        )
        path = str(serving.ROOT / "python/src")
        done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("numpy\n", ""))


if __name__ == "__main__":
    unittest.main()
