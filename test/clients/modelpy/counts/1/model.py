import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Has metrics of its own, which a script changes: a list of [metric, method, arguments...]."""

    def initialize(self, args):
        self.metrics = None

    def execute(self, requests):
        return [self.answer(r) for r in requests]

    def answer(self, r):
        script = json.loads(pb_utils.get_input_tensor_by_name(r, "SCRIPT").as_numpy()[0])
        told = []
        for name, method, *arguments in script:
            try:
                if self.metrics is None:  # here, so that a server without metrics is told by its answer
                    self.metrics = self.make()
                told.append(getattr(self.metrics[name], method)(*arguments))
            except Exception as e:
                told.append(type(e).__name__)
        return pb_utils.InferenceResponse([pb_utils.Tensor("VALUES", np.array([json.dumps(told)], np.object_))])

    def make(self):
        family = pb_utils.MetricFamily
        self.families = [
            family("suite_things_total", "things that were seen", family.COUNTER),
            family("suite_level", "how high it stands", family.GAUGE),
            family("suite_sizes", "how large they were", family.HISTOGRAM),
        ]
        things, level, sizes = self.families
        return {
            "red": things.Metric({"color": "red"}), "blue": things.Metric({"color": "blue", "size": "l"}),
            "level": level.Metric({"where": "here"}), "sizes": sizes.Metric({"of": "boxes"}, buckets=[0.1, 1, 10]),
        }
