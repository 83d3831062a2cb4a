"""Imported by an app.py: turns a function or a class into a model.

    import shoal

    @shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32)
    def total(x):
        return {"y": x.sum(axis=1)}
"""

import inspect
import json

import numpy as np

import triton_python_backend_utils as pb_utils

__all__ = ["BadInput", "model"]


class BadInput(Exception):
    """Raised by a model if the client's input is invalid. The client receives the message with 400 or INVALID_ARGUMENT."""


def model(inputs, outputs, max_batch=0, name=None, instances=1, retry_apart=True):
    """Registers the decorated function or class as a model, and returns it unchanged.

    inputs and outputs map names to a type and a shape. If max_batch is set, the first dimension is -1, for rows: the function is called with the rows
    of several requests, concatenated, and must return the same number of rows. Otherwise it is called once per request.

    A function is called with the inputs as keyword arguments. A class is instantiated once per model instance, and the object is called likewise.

    retry_apart: a failed call may be repeated with subsets of its rows, so that only the requests that cause the failure fail.
    """

    def add(target):
        m = Model(target, name or target.__name__, inputs, outputs, max_batch, instances, retry_apart)
        if m.name in models:
            raise ValueError("model %r: found twice, expected once: give one of them another name=" % m.name)
        models[m.name] = m
        return target

    return add


models = {}  # of the imported file, by name


class Model:
    """Takes the role of the TritonPythonModel class of a model.py."""

    def __init__(self, target, name, inputs, outputs, max_batch=0, instances=1, retry_apart=True):
        for key, n, least in (("max_batch", max_batch, 0), ("instances", instances, 1)):
            if not isinstance(n, int) or n < least:
                raise ValueError("model %r: %s: found %r, expected an integer of at least %d" % (name, key, n, least))
        self.target, self.name, self.max_batch, self.instances, self.retry_apart = target, name, max_batch, instances, bool(retry_apart)
        self.inputs = ports(name, "inputs", inputs, max_batch)
        self.outputs = ports(name, "outputs", outputs, max_batch)
        self.check_call()

    def check_call(self):
        """Checks that the callable takes the inputs. The __call__ of a class may be inherited, but not from type: every class has that one."""
        call, self_argument = self.target, []
        if isinstance(self.target, type):
            call, self_argument = next((vars(k)["__call__"] for k in self.target.__mro__ if "__call__" in vars(k)), None), [None]
        if call is None:
            raise TypeError("model %r: found a class without __call__, expected one that takes the inputs" % self.name)
        try:
            inspect.signature(call).bind(*self_argument, **self.inputs)
        except TypeError as e:
            raise TypeError("model %r: it cannot be called with the inputs %s: %s" % (self.name, ", ".join(self.inputs), e)) from None

    def auto_complete_config(self, config):
        config.set_max_batch_size(self.max_batch)
        if self.max_batch > 1:
            config.set_dynamic_batching()
        completed = config.as_dict()
        for kind, all_ports, add in (("input", self.inputs, config.add_input), ("output", self.outputs, config.add_output)):
            for port in all_ports.values():
                add({"name": port.name, "data_type": "TYPE_" + port.type, "dims": port.dims})
                if port.scalar:
                    pb_utils._by_name(completed[kind], port.name)["reshape"] = {"shape": []}
        completed["instance_group"] = [{"count": self.instances}]
        return config

    def __call__(self):
        return Instance(self)


class Instance:
    def __init__(self, of):
        self.model = of
        self.run = of.target() if isinstance(of.target, type) else of.target

    def initialize(self, args):
        self.names = [output["name"] for output in json.loads(args["model_config"])["output"]]

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, request):
        arrays = {t.name(): t.as_numpy() for t in request.inputs()}
        try:
            result = self.run(**arrays)
        except BadInput as e:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(e, pb_utils.TritonError.INVALID_ARG))
        rows = next(iter(arrays.values())).shape[0] if self.model.max_batch else None
        return pb_utils.InferenceResponse(self.tensors(result, rows))

    def tensors(self, result, rows):
        outputs = self.model.outputs
        if not isinstance(result, dict):
            if len(outputs) != 1:
                raise TypeError("found %s as the result, expected a dict with %s" % (type(result).__name__, ", ".join(outputs)))
            result = {next(iter(outputs)): result}
        if result.keys() != outputs.keys():
            raise ValueError("found the outputs %s, expected %s" % (", ".join(map(str, result)) or "none", ", ".join(outputs)))
        return [pb_utils.Tensor(name, outputs[name].array(result[name], rows)) for name in self.names]

    def finalize(self):
        if isinstance(self.model.target, type) and hasattr(self.run, "close"):
            self.run.close()


def ports(model_name, kind, given, max_batch):
    if not isinstance(given, dict) or not given:
        raise TypeError('model %r: %s: found %r, expected a dict such as {"x": ("FP32", [-1, 3])}' % (model_name, kind, given))
    return {name: Port("model %r: %s[%r]" % (model_name, kind, name), name, spec, max_batch) for name, spec in given.items()}


class Port:
    """An input or an output."""

    def __init__(self, where, name, spec, max_batch):
        self.name = name
        try:
            of, shape = spec
            self.shape = [int(d) for d in shape]
        except (TypeError, ValueError):
            raise TypeError('%s: found %r, expected a type and a shape, such as ("FP32", [-1, 3])' % (where, spec)) from None
        self.type = type_of(where, of)
        self.dtype = np.dtype(pb_utils.triton_string_to_numpy(self.type))
        if any(d < 1 and d != -1 for d in self.shape):
            raise ValueError("%s: found shape %s, expected sizes of at least 1, or -1 for any size" % (where, self.shape))
        if max_batch and self.shape[:1] != [-1]:
            raise ValueError("%s: found shape %s, expected -1 first, for the rows of a batch, because max_batch is %d" % (where, self.shape, max_batch))
        if not self.shape:
            raise ValueError("%s: found no dimension, expected at least one" % where)
        self.dims = self.shape[1:] if max_batch else self.shape
        # One number per row. Clients see a dimension of size one, as with ONNX models.
        self.scalar = not self.dims
        self.dims = self.dims or [1]

    def array(self, value, rows):
        """Returns the value as an array of the output's type, after checking its shape."""
        a = np.asarray(value)
        if rows is not None and (a.ndim == 0 or a.shape[0] != rows):
            raise ValueError("output %r: found %s, expected %d rows, as many as the inputs have" % (
                self.name, "%d rows" % a.shape[0] if a.ndim else "a single value", rows))
        if a.ndim != len(self.shape) or any(want not in (-1, have) for want, have in zip(self.shape, a.shape)):
            raise ValueError("output %r: found shape %s, expected %s" % (self.name, list(a.shape), self.shape))
        if self.type == "STRING":
            if a.dtype.kind not in "OSU":
                raise TypeError("output %r: found an array of %s, expected strings" % (self.name, a.dtype))
        elif a.dtype != self.dtype:
            if not np.can_cast(a.dtype, self.dtype, "same_kind"):
                raise TypeError("output %r: found an array of %s, expected %s" % (self.name, a.dtype, self.dtype))
            a = a.astype(self.dtype)
        return a


def type_of(where, of):
    """Returns Triton's name of a type that is given by that name or as a numpy dtype."""
    if isinstance(of, str):
        name = of[len("TYPE_"):] if of.startswith("TYPE_") else of
        name = "STRING" if name == "BYTES" else name
        if name in pb_utils._NAMES[1:] and name != "BF16":  # BF16 does not exist in numpy
            return name
    if of in (str, bytes, object):
        return "STRING"
    try:
        return pb_utils._NAMES[pb_utils._code_of(where, np.dtype(of))]
    except (TypeError, pb_utils.TritonModelException):
        raise TypeError("%s: found type %r, expected a name such as FP32, INT64 or STRING, or a numpy dtype" % (where, of)) from None


def choose(name, file):
    """Returns the model with the given name, or the only model of a model.py."""
    if name in models:
        return models[name]
    if len(models) == 1 and file == "model.py":
        return next(iter(models.values()))
    return None
