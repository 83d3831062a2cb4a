import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has no config.pbtxt: it says itself what it takes."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", -pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]) for r in requests]
