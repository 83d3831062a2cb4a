"""A member of the ensembles in cases.json. Its parameters say what it computes, and when it fails.

op        an expression for the outputs by name, with x for the inputs by name and self.ver for the version; by default each output is the first input
fail_if   an expression: if it is true, the request gets the error fail_msg with the code fail_code
raise_if  an expression: if it is true, execute raises
batch_ms  how long a batch takes
record    a file that gets a line for each batch, with the ids of its requests
"""

import json
import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.name, self.ver = args["model_name"], args["model_version"]
        self.parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.types = {output["name"]: pb_utils.triton_string_to_numpy(output["data_type"]) for output in config["output"]}
        if "init_fail" in self.parameters:
            raise RuntimeError(self.parameters["init_fail"])

    def execute(self, requests):
        ids = [request.request_id() or "-" for request in requests]
        extra = dict(pair.split("=") for pair in self.parameters.get("slow_ms", "").split(",") if pair)
        time.sleep((float(self.parameters.get("batch_ms", 0)) + sum(float(extra.get(one, 0)) for one in ids)) / 1000)
        with open(self.parameters["record"], "a") as file:
            file.write(json.dumps([self.name, ids]) + "\n")
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self.says("raise_if", x):
            raise RuntimeError(self.parameters.get("fail_msg", "raised"))
        if self.says("fail_if", x):
            code = getattr(pb_utils.TritonError, self.parameters.get("fail_code", "INTERNAL"))
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(self.parameters.get("fail_msg", "failed"), code))
        made = self.says("op", x) if "op" in self.parameters else {name: next(iter(x.values())) for name in self.types}
        if "only_requested" in self.parameters:
            made = {name: array for name, array in made.items() if name in request.requested_output_names()}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, numpy.asarray(array, dtype=self.types[name])) for name, array in made.items()])

    def says(self, parameter, x):
        text = self.parameters.get(parameter)
        return text and eval(text, {"np": numpy, "x": x, "self": self})  # the cases are ours
