import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Waits until its request is cancelled, at most so long, and answers 0 with what all before it saw."""

    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, r):
        longest = int(pb_utils.get_input_tensor_by_name(r, "MILLISECONDS").as_numpy()[0]) / 1000
        if longest == 0:
            seen, self.seen = self.seen, []
            return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array(seen, np.object_))])
        began = time.monotonic()
        while not r.is_cancelled() and time.monotonic() - began < longest:
            time.sleep(0.005)
        self.seen.append("cancelled" if r.is_cancelled() else "not cancelled")
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("left", pb_utils.TritonError.CANCELLED))
