import json

import numpy as np
import triton_python_backend_utils as pb_utils


def plain(value):
    """What a value is, in words that do not depend on who made its class."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), [plain(v) for v in value.reshape(-1).tolist()]]
    if isinstance(value, type):
        return "class " + value.__name__.rstrip("_")  # numpy 2 has no bool_
    if isinstance(value, (bytes, bytearray)):
        return "bytes " + repr(bytes(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return "a " + type(value).__name__


class TritonPythonModel:
    """Says what an expression is worth, of pb_utils (pb), numpy (np), the request (r) and the arguments of initialize (args)."""

    def initialize(self, args):
        self.args = args
        self.config = json.loads(args["model_config"])

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, r):
        text = pb_utils.get_input_tensor_by_name(r, "EXPRESSION").as_numpy()[0].decode()
        names = {"pb": pb_utils, "np": np, "json": json, "r": r, "args": self.args, "config": self.config}
        try:
            value = {"value": plain(eval(text, names))}
        except Exception as e:
            value = {"raises": type(e).__name__}
        return pb_utils.InferenceResponse([pb_utils.Tensor("VALUE", np.array([json.dumps(value)], np.object_))])
