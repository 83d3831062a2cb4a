"""Serves model files of libraries such as scikit-learn without code by their author."""

import os
import re
import sys

import shoal_app
from shoal._app import Declaration, TensorSpec
from shoal_numpy import np

MAX_BATCH = 64  # default for models whose configuration does not set it


class CannotServe(Exception):
    """A file cannot be served. The message is meant for the operator."""


def open_model(path, name, config):
    """Returns an object that runs the model in a file."""
    ending = os.path.splitext(path)[1]
    return OPENERS[ending](path, name, config.as_dict())


def scikit_learn(path, name, config):
    need("joblib", "scikit-learn", path)
    import joblib

    try:
        fitted = joblib.load(path)  # runs any code that the file contains
    except ModuleNotFoundError as e:
        raise missing(e.name.split(".")[0], path) from None
    if not hasattr(fitted, "predict"):
        raise CannotServe("%s contains %s, expected an object with a predict method" % (os.path.basename(path), type(fitted).__name__))
    methods = [m for m in ("predict", "predict_proba") if hasattr(fitted, m)]

    def run(**inputs):
        x, = inputs.values()
        return {m: getattr(fitted, m)(x) for m in methods}

    # numpy's default type is what the model's authors most likely tested with.
    return predictor(run, path, name, config, getattr(fitted, "n_features_in_", None), "FP64")


def xgboost(path, name, config):
    need("xgboost", "xgboost", path)
    import xgboost

    booster = xgboost.Booster(model_file=path)

    def run(**inputs):
        x, = inputs.values()
        return {"predict": booster.predict(xgboost.DMatrix(x), validate_features=False)}

    return predictor(run, path, name, config, booster.num_features(), "FP32")


def predictor(run, path, name, config, features, of):
    """A model with one input, rows of features. Its outputs are determined by running it with a row of zeros."""
    inputs, outputs, max_batch = configured(config)
    combine = not (inputs and outputs)  # a complete configuration would say so
    if not inputs:
        if not features:
            raise CannotServe("%s does not say how many features it takes: configure its input in a config.pbtxt" % os.path.basename(path))
        inputs, max_batch = {"x": (of, [-1, features])}, max_batch or MAX_BATCH
    if len(inputs) != 1:
        raise CannotServe("%s takes one input, and the configuration has %s" % (os.path.basename(path), ", ".join(inputs)))
    if not outputs:
        (of, shape), = inputs.values()
        zeros = np.zeros([max(1, d) for d in shape], shoal_app.dtype_of(TensorSpec("", "", (of, shape), 0)))
        outputs = {key: (a.dtype, [-1] + list(a.shape[1:])) for key, a in run(x=zeros).items() if isinstance(a, np.ndarray)}
    return shoal_app.Model(Declaration(lambda **given: select(run(**given), outputs), name, inputs, outputs, max_batch), combine)


def select(results, outputs):
    """Returns the results that are configured as outputs. A single output may have any name."""
    if len(outputs) == 1 and not outputs.keys() & results.keys():
        return {next(iter(outputs)): next(iter(results.values()))}
    return {key: value for key, value in results.items() if key in outputs}


def torch_script(path, name, config):
    need("torch", "torch", path)
    import torch

    inputs, outputs, max_batch = configured(config)
    if not inputs or not outputs:
        raise CannotServe("%s does not describe its inputs and outputs: configure them in a config.pbtxt, in the order of its forward" % os.path.basename(path))
    try:
        module = torch.jit.load(path, map_location="cpu").eval()
    except RuntimeError as e:
        raise CannotServe("%s is not TorchScript: save it with torch.jit.save, or export it with torch.onnx.export, which needs no library (%s)" % (
            os.path.basename(path), str(e).split("\n")[0])) from None

    arguments = positions(inputs, [a.name for a in module.forward.schema.arguments][1:])  # the first is self
    if sorted(arguments.values()) != list(range(len(inputs))):
        raise CannotServe("%s: the inputs are the arguments %s of its forward, expected each of the first %d once" % (
            os.path.basename(path), ", ".join("%d (%s)" % (at, key) for key, at in arguments.items()), len(inputs)))
    order = sorted(inputs, key=arguments.get)
    places = positions(outputs, [])

    def run(**given):
        with torch.inference_mode():
            results = module(*[torch.from_numpy(given[key]) for key in order])
        if isinstance(results, torch.Tensor):
            results = [results]
        if not isinstance(results, dict):
            for key, at in places.items():
                if at >= len(results):
                    raise ValueError("output %r: found %d results, expected at least %d" % (key, len(results), at + 1))
            results = {key: results[at] for key, at in places.items()}
        return {key: value.numpy() for key, value in results.items() if key in outputs}

    return shoal_app.Model(Declaration(run, name, inputs, outputs, max_batch), combine=False)  # the configuration is complete


def positions(names, arguments):
    """Returns the position of each tensor by name, as in Triton: that of the argument of its name, the number after the first "__", or the place in the configuration.
    The first of these that applies to all of them does."""
    numbers = [name.partition("__")[2] for name in names]
    if arguments and all(name in arguments for name in names):
        at = [arguments.index(name) for name in names]
    elif all(re.fullmatch("[0-9]+", n) for n in numbers):
        at = [int(n) for n in numbers]
    else:
        at = range(len(names))
    return dict(zip(names, at))


OPENERS = {
    ".joblib": scikit_learn, ".pkl": scikit_learn,
    ".ubj": xgboost, ".json": xgboost, ".bst": xgboost,
    ".pt": torch_script,
}


def configured(config):
    """The configuration: inputs, outputs and the largest batch size."""
    max_batch = config.get("max_batch_size", 0)

    def given(kind):
        return {t["name"]: (t["data_type"], shape(t)) for t in config.get(kind, [])}

    def shape(t):
        dims = t["reshape"].get("shape", []) if t.get("reshape") is not None else t["dims"]
        return ([-1] if max_batch else []) + [int(d) for d in dims]

    return given("input"), given("output"), max_batch


def need(module, package, path):
    try:
        __import__(module)
    except ModuleNotFoundError as e:
        raise missing(package if e.name == module else e.name, path) from None


def missing(module, path):
    package = {"sklearn": "scikit-learn"}.get(module, module)
    return CannotServe("%s needs %s, which %s does not have: install it with %s -m pip install %s; a model that is exported to ONNX needs no library" % (
        os.path.basename(path), package, sys.executable, sys.executable, package))
