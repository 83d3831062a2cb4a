import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Logs its input at each level, and prints it."""

    def execute(self, requests):
        for r in requests:
            text = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()[0].decode()
            log = pb_utils.Logger
            log.log_info("info of " + text)
            log.log_warn("warning of " + text)
            log.log_error("error of " + text)
            log.log_verbose("verbose of " + text)
            log.log("default of " + text)
            log.log("named of " + text, log.WARNING)
            print("print of " + text, flush=True)
            print("stderr of " + text, file=sys.stderr, flush=True)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1], np.int32))]) for _ in requests]
