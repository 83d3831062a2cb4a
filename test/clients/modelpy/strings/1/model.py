import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers strings as they came, as text of what they were seen as, and their lengths."""

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(r, "IN")) for r in requests]

    def answer(self, tensor):
        array = tensor.as_numpy()
        seen = np.array([repr(v) for v in array.reshape(-1)], dtype=np.object_).reshape(array.shape)
        lengths = np.array([len(v) for v in array.reshape(-1)], dtype=np.int64).reshape(array.shape)
        if array.size and array.reshape(-1)[0] == b"fixed":
            array = array.astype(np.bytes_)
        elif array.size and array.reshape(-1)[0] == b"text":
            array = np.array([v.decode() for v in array.reshape(-1)], dtype=np.object_).reshape(array.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SAME", array), pb_utils.Tensor("SEEN", seen), pb_utils.Tensor("LENGTHS", lengths)])
