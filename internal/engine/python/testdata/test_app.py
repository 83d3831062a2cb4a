"""Tests of declared models and of model files."""

import contextlib
import json
import sys
import types
import unittest
import unittest.mock

import numpy as np

import shoal
import shoal_app
import shoal_files
import triton_python_backend_utils as pb_utils
from shoal._app import Declaration, declared

X = {"x": ("FP32", [-1, 3])}
Y = {"y": ("FP32", [-1])}


def total(x):
    return {"y": x.sum(axis=1)}


def model_of(target, max_batch=8, instances=1):
    return shoal_app.Model(Declaration(target, "m", X, Y, max_batch, instances))


def run(model, **arrays):
    """The outputs of a model, by name, or its error."""
    instance = model()
    config = model.auto_complete_config(pb_utils.ModelConfig({})).as_dict()
    instance.initialize({"model_config": json.dumps(config)})
    response, = instance.execute([pb_utils.InferenceRequest(inputs=[pb_utils.Tensor(k, v) for k, v in arrays.items()])])
    if response.has_error():
        return response.error()
    return {t.name(): t.as_numpy() for t in response.output_tensors()}


class Models(unittest.TestCase):
    def test_a_model_is_chosen_by_its_name(self):
        self.addCleanup(declared.clear)
        self.assertIs(shoal.model(X, Y, max_batch=4)(total), total)
        shoal.model(X, Y, name="other")(total)
        self.assertEqual(shoal_app.choose("other", "app.py").declaration.name, "other")
        self.assertIsNone(shoal_app.choose("unknown", "model.py"))
        declared.pop()
        self.assertEqual(shoal_app.choose("any", "model.py").declaration.name, "total")
        self.assertIsNone(shoal_app.choose("any", "app.py"))
        shoal.model(X, Y)(total)
        with self.assertRaisesRegex(shoal_app.DuplicateModel, "app.py declares 2 models 'total', expected one"):
            shoal_app.choose("total", "app.py")

    def test_its_configuration_is_complete(self):
        config = model_of(total, 8, 2).auto_complete_config(pb_utils.ModelConfig({})).as_dict()
        self.assertEqual(config, {
            "max_batch_size": 8, "dynamic_batching": {}, "instance_group": [{"count": 2}],
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}],
        })

    def test_a_function_is_given_rows_and_gives_as_many(self):
        x = np.ones((2, 3), np.float32)
        self.assertEqual(run(model_of(total), x=x)["y"].tolist(), [3, 3])
        for result, message in (
            (lambda x: x[:1, 0], "output 'y': found 1 rows, expected 2 rows"),
            (lambda x: 7.0, "output 'y': found a single value, expected 2 rows"),
            (lambda x: x, r"output 'y': found shape \[2, 3\], expected \[-1\]"),
            (lambda x: {"z": x}, "found the outputs z, expected y"),
            (lambda x: np.array(["a", "b"]), "output 'y': found an array of <U1, expected float32"),
        ):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                run(model_of(result), x=x)

    def test_results_are_cast_where_little_is_lost(self):
        y = run(model_of(lambda x: [1, 2]), x=np.ones((2, 3), np.float32))["y"]
        self.assertEqual((y.dtype, y.tolist()), (np.float32, [1, 2]))

    def test_bad_input_is_the_clients_fault(self):
        def refuse(x):
            raise shoal.BadInput("too dark")

        error = run(model_of(refuse), x=np.ones((1, 3), np.float32))
        self.assertEqual((error.message(), error.code()), ("too dark", pb_utils.TritonError.INVALID_ARG))

    def test_each_instance_has_an_object_of_a_class(self):
        class Counter:
            def __init__(self):
                self.calls = 0

            def __call__(self, x):
                self.calls += 1
                return np.full(len(x), self.calls)

            def close(self):
                self.calls = -1

        model = model_of(Counter)
        one, other = model(), model()
        self.assertIsNot(one.run, other.run)
        one.finalize()
        self.assertEqual((one.run.calls, other.run.calls), (-1, 0))


class Doubler:
    n_features_in_ = 2

    def predict(self, x):
        return 2 * x[:, 0]


class Files(unittest.TestCase):
    def test_a_missing_library_says_what_to_install(self):
        for file, package in (("m.joblib", "scikit-learn"), ("m.pkl", "scikit-learn"), ("m.ubj", "xgboost"), ("m.pt", "torch")):
            with self.assertRaisesRegex(shoal_files.CannotServe, "%s needs %s, .*pip install %s; a model that is exported to ONNX needs no library" % (file, package, package)):
                raise shoal_files.missing(package, file)
        self.assertIn("pip install scikit-learn;", str(shoal_files.missing("sklearn", "m.pkl")))

    def test_what_a_model_gives_is_found_by_trying(self):
        fitted = Doubler()
        m = shoal_files.predictor(lambda **inputs: {"predict": fitted.predict(*inputs.values())}, "m.pkl", "m", {}, 2, "FP64")
        d = m.declaration
        self.assertEqual((d.inputs["x"].shape, d.outputs["predict"].type, d.outputs["predict"].shape, d.max_batch), ([-1, 2], "FP64", [-1], 64))
        self.assertEqual(run(m, x=np.array([[4.0, 1.0]]))["predict"].tolist(), [8])

    def test_a_configuration_names_inputs_and_outputs_itself(self):
        config = {"max_batch_size": 3, "input": [{"name": "features", "data_type": "TYPE_FP32", "dims": [2]}],
                  "output": [{"name": "score", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}}]}
        m = shoal_files.predictor(lambda **inputs: {"predict": inputs["features"][:, 1]}, "m.pkl", "m", config, None, "FP64")
        self.assertEqual(run(m, features=np.array([[4, 1]], np.float32))["score"].tolist(), [1])

    def test_a_model_that_does_not_say_what_it_takes_needs_a_configuration(self):
        with self.assertRaisesRegex(shoal_files.CannotServe, "does not say how many features it takes: configure its input in a config.pbtxt"):
            shoal_files.predictor(lambda x: {}, "m.pkl", "m", {}, None, "FP64")

    def test_tensors_of_torch_script_are_matched_as_in_triton(self):
        def forward(a, b):
            return a - b, a + b

        a, b = np.array([[5]], np.float32), np.array([[3]], np.float32)
        for inputs, outputs, expected in (
            (("INPUT__1", "INPUT__0"), ("OUTPUT__1",), [8]),
            (("INPUT__1", "INPUT__0"), ("OUTPUT__1", "OUTPUT__0"), [8, -2]),
            (("b", "a"), ("difference",), [-2]),  # arguments have names, and results do not
            (("x", "y"), ("difference", "sum"), [2, 8]),
            (("x", "INPUT__0"), ("difference", "sum__1"), [2, 8]),  # all or none
            (("INPUT__one", "INPUT__0"), ("OUTPUT__",), [2]),
        ):
            with self.subTest(inputs=inputs, outputs=outputs), fake_torch(forward):
                m = shoal_files.torch_script("m.pt", "m", torch_config(inputs, outputs))
                results = run(m, **dict(zip(inputs, (a, b))))
                self.assertEqual([results[name].item() for name in outputs], expected)

    def test_positions_that_torch_script_does_not_have_are_errors(self):
        with fake_torch(lambda a, b: (a, b)):
            for inputs in (("INPUT__0", "INPUT__2"), ("INPUT__0", "OTHER__0"), ("b",)):
                with self.assertRaisesRegex(shoal_files.CannotServe, "m.pt: the inputs are the arguments .* of its forward, expected each of the first %d once" % len(inputs)):
                    shoal_files.torch_script("m.pt", "m", torch_config(inputs, ("y",)))
            m = shoal_files.torch_script("m.pt", "m", torch_config(("a", "b"), ("OUTPUT__0", "OUTPUT__2")))
            with self.assertRaisesRegex(ValueError, "output 'OUTPUT__2': found 2 results, expected at least 3"):
                run(m, a=np.ones((1, 1), np.float32), b=np.ones((1, 1), np.float32))


def torch_config(inputs, outputs):
    def tensors(names):
        return [{"name": name, "data_type": "TYPE_FP32", "dims": [1]} for name in names]

    return {"max_batch_size": 4, "input": tensors(inputs), "output": tensors(outputs)}


@contextlib.contextmanager
def fake_torch(forward):
    """A module torch that loads a function of arrays from any file."""
    class Tensor:
        def __init__(self, array):
            self.array = array

        def numpy(self):
            return self.array

    class Module:
        def eval(self):
            return self

        def __call__(self, *args):
            return tuple(Tensor(a) for a in forward(*[t.array for t in args]))

    def load(path, map_location):
        module = Module()
        names = ("self",) + forward.__code__.co_varnames
        module.forward = types.SimpleNamespace(schema=types.SimpleNamespace(arguments=[types.SimpleNamespace(name=n) for n in names]))
        return module

    torch = types.SimpleNamespace(Tensor=Tensor, from_numpy=Tensor, inference_mode=contextlib.nullcontext, jit=types.SimpleNamespace(load=load))
    with unittest.mock.patch.dict(sys.modules, torch=torch):
        yield


if __name__ == "__main__":
    unittest.main()
