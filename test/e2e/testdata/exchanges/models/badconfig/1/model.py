import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        g = pb_utils.get_input_tensor_by_name
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT" + k, g(r, "IN" + k).as_numpy()) for k in NAMES]) for r in requests]
NAMES = []
