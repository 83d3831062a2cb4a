import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Says whether it is ready as the last request told it to."""

    def initialize(self, args):
        self.how = "yes"

    def execute(self, requests):
        answers = []
        for r in requests:
            given = pb_utils.get_input_tensor_by_name(r, "HOW")
            self.how = given.as_numpy()[0].decode()
            if self.how == "busy":
                time.sleep(2)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("HOW", given.as_numpy())]))
        return answers

    async def is_ready(self):
        if self.how == "raise":
            raise ValueError("cannot say")
        return self.how != "no"
