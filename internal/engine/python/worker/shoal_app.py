"""Runs the models that an app.py declares with shoal.model."""

import json

import triton_python_backend_utils as pb_utils
from shoal import BadInput
from shoal._app import declared
from shoal_numpy import np


class DuplicateModel(Exception):
    """Two models of a file have the same name."""


class Model:
    """Takes the role of the TritonPythonModel class of a model.py, for a declaration. Without combine, requests are combined only if the configuration says so."""

    def __init__(self, declaration, combine=True):
        self.declaration = declaration
        self.combine = combine
        self.retry_apart = declaration.retry_apart

    def auto_complete_config(self, config):
        declaration = self.declaration
        config.set_max_batch_size(declaration.max_batch)
        if declaration.max_batch > 1 and self.combine:
            config.set_dynamic_batching()
        completed = config.as_dict()
        written = {output["name"] for output in completed.get("output", ())}
        for name in sorted(written - declaration.outputs.keys()):
            raise ValueError("output %r: found in the model's configuration, expected only outputs that the function declares: %s" % (name, ", ".join(declaration.outputs)))
        outputs = {name: spec for name, spec in declaration.outputs.items() if name in written or not written}  # the file may leave some out
        for kind, specs, add in (("input", declaration.inputs, config.add_input), ("output", outputs, config.add_output)):
            for spec in specs.values():
                add({"name": spec.name, "data_type": "TYPE_" + spec.type, "dims": spec.dims})
                if spec.scalar:
                    pb_utils._by_name(completed[kind], spec.name)["reshape"] = {"shape": []}
        completed["instance_group"] = [{"count": declaration.instances}]
        return config

    def __call__(self):
        return Instance(self.declaration)


class Instance:
    def __init__(self, declaration):
        self.declaration = declaration
        self.is_object = isinstance(declaration.target, type)
        self.run = declaration.target() if self.is_object else declaration.target

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
        rows = next(iter(arrays.values())).shape[0] if self.declaration.max_batch else None
        return pb_utils.InferenceResponse(self.tensors(result, rows))

    def tensors(self, result, rows):
        outputs = self.declaration.outputs
        if not isinstance(result, dict):
            if len(outputs) != 1:
                raise TypeError("found %s as the result, expected a dict with %s" % (type(result).__name__, ", ".join(outputs)))
            result = {next(iter(outputs)): result}
        if result.keys() != outputs.keys():
            raise ValueError("found the outputs %s, expected %s" % (", ".join(map(str, result)) or "none", ", ".join(outputs)))
        return [pb_utils.Tensor(name, output_array(outputs[name], result[name], rows)) for name in self.names]

    def finalize(self):
        if self.is_object and hasattr(self.run, "close"):
            self.run.close()


def dtype_of(spec):
    return np.dtype(pb_utils.triton_string_to_numpy(spec.type))


def output_array(spec, value, rows):
    """Returns the value of an output as an array of its type, after checking its shape."""
    a = np.asarray(value)
    if rows is not None and (a.ndim == 0 or a.shape[0] != rows):
        raise ValueError("output %r: found %s, expected %d rows, as many as the inputs have" % (
            spec.name, "%d rows" % a.shape[0] if a.ndim else "a single value", rows))
    if a.ndim != len(spec.shape) or any(want not in (-1, have) for want, have in zip(spec.shape, a.shape)):
        raise ValueError("output %r: found shape %s, expected %s" % (spec.name, list(a.shape), spec.shape))
    if spec.type == "STRING":
        if a.dtype.kind not in "OSU":
            raise TypeError("output %r: found an array of %s, expected strings" % (spec.name, a.dtype))
        return a
    dtype = dtype_of(spec)
    if a.dtype == dtype:
        return a
    if not np.can_cast(a.dtype, dtype, "same_kind"):
        raise TypeError("output %r: found an array of %s, expected %s" % (spec.name, a.dtype, dtype))
    return a.astype(dtype)


def choose(name, file):
    """Returns the declared model with the given name, or the only one of a model.py; None if there is none."""
    found = [d for d in declared if d.name == name]
    if len(found) > 1:
        raise DuplicateModel("%s declares %d models %r, expected one: give the others another name=" % (file, len(found), name))
    if not found and len(declared) == 1 and file == "model.py":
        found = declared
    return Model(found[0]) if found else None
