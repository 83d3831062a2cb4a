"""A model that makes the request which its input describes, as JSON, and answers with the outputs."""

import json

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", numpy.array([self.ask(request)], dtype=object))]) for request in requests]

    def ask(self, request):
        script = json.loads(pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().flat[0])
        inputs = [pb_utils.Tensor(name, numpy.array(data, dtype=numpy.float32)) for name, data in script["input"].items()]
        answer = pb_utils.InferenceRequest(model_name=script["model"], inputs=inputs, requested_output_names=script["outputs"]).exec()
        if answer.has_error():
            raise RuntimeError(answer.error().message())
        return json.dumps({tensor.name(): tensor.as_numpy().tolist() for tensor in answer.output_tensors()})
