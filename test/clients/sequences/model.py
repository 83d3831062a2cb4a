"""The model of cases.json. Its parameters say what it computes, and when it fails.

op        an expression for the outputs by name, with x for the inputs by name
fail_if   an expression: if it is true, the request gets the error fail_msg
batch_ms  how long a batch takes, and slow_ms how much longer with a request, by its id
record    a file that gets a line for each batch: the ids of its requests, and their inputs but INPUT
"""

import json
import time

import numpy
import triton_python_backend_utils as pb_utils


def shown(array):
    return [str(array.dtype), list(array.shape), [one.decode() if isinstance(one, bytes) else one for one in array.reshape(-1).tolist()]]


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.types = {output["name"]: pb_utils.triton_string_to_numpy(output["data_type"]) for output in config["output"]}

    def execute(self, requests):
        ids = [request.request_id() or "-" for request in requests]
        given = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        extra = dict(pair.split("=") for pair in self.parameters.get("slow_ms", "").split(",") if pair)
        time.sleep((float(self.parameters.get("batch_ms", 0)) + sum(float(extra.get(one, 0)) for one in ids)) / 1000)
        with open(self.parameters["record"], "a") as file:
            file.write(json.dumps([ids, [{name: shown(array) for name, array in sorted(x.items()) if name != "INPUT"} for x in given]]) + "\n")
        return [self.answer(one, x) for one, x in zip(ids, given)]

    def answer(self, one, x):
        if self.says("fail_if", one, x):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(self.parameters.get("fail_msg", "failed")))
        made = self.says("op", one, x) if "op" in self.parameters else {name: next(iter(x.values())) for name in self.types}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, numpy.asarray(array, dtype=self.types.get(name))) for name, array in made.items()])

    def says(self, parameter, one, x):
        text = self.parameters.get(parameter)
        return text and eval(text, {"np": numpy, "x": x, "d": {"id": one}})  # the cases are ours
