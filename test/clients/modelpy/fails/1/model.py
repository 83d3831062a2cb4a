import time

import numpy as np
import triton_python_backend_utils as pb_utils


class Peculiar(Exception):
    pass


def deep(n):
    if n == 0:
        raise KeyError("missing")
    deep(n - 1)


def one(value, kind=np.int32, name="OUT"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array([[value]], kind))])


class TritonPythonModel:
    """Fails as its requests ask: the first that wants something of the whole batch has its way."""

    def execute(self, requests):
        wanted = [pb_utils.get_input_tensor_by_name(r, "HOW").as_numpy()[0, 0].decode() for r in requests]
        for how in wanted:
            if how.startswith("sleep:"):
                time.sleep(float(how[len("sleep:"):]) / 1000)
        for how in wanted:
            if how == "raise":
                raise ValueError("no good")
            if how == "raise peculiar":
                raise Peculiar("größer than\ntwo lines")
            if how == "raise empty":
                raise RuntimeError
            if how == "raise deep":
                deep(2)
            if how == "raise triton":
                raise pb_utils.TritonModelException("not today")
            if how == "divide":
                return 1 // 0
            if how == "too few":
                return []
            if how == "too many":
                return [one(1)] * (len(requests) + 1)
            if how == "nothing":
                return None
            if how == "a number":
                return 7
            if how == "none inside":
                return [None] * len(requests)
            if how == "strings inside":
                return ["answer"] * len(requests)
            if how == "not an array":
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", [[1]])])]
        return [self.answer(how) for how in wanted]

    def answer(self, how):
        if how.startswith("error:"):
            _, code, text = how.split(":")
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, getattr(pb_utils.TritonError, code)))
        if how == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this one alone"))
        if how == "error and tensors":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[1]], np.int32))], pb_utils.TritonError("both"))
        if how == "other type":
            return one(1, np.float32)
        if how == "other name":
            return one(1, name="ELSE")
        if how == "no output":
            return pb_utils.InferenceResponse([])
        if how == "other shape":
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 3), np.int32))])
        return one(1)
