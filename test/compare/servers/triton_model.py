"""Triton's Python backend with ONNX Runtime: its package has no other backend."""

import os
import sys

import numpy
import triton_python_backend_utils as utils

sys.path.append(os.environ["COMPARE_SERVERS"])

import onnx_model


class TritonPythonModel:
    def initialize(self, args):
        self.model = onnx_model.Model()

    def execute(self, requests):
        inputs = {}
        for name in self.model.names:
            parts = [utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            inputs[name] = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        answers = self.model.batch(inputs)
        # One row each: that is what the clients send.
        return [utils.InferenceResponse([utils.Tensor(onnx_model.ABOUT["output"], answers[i:i + 1])]) for i in range(len(requests))]
