"""BentoML. What it batches are lists, so requests and answers are base64 in JSON. It chooses itself how long to wait."""

import base64

import bentoml

import onnx_model

ABOUT = onnx_model.ABOUT


@bentoml.service(workers=ABOUT["workers"], traffic={"timeout": 60}, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Service:
    def __init__(self):
        self.model = onnx_model.Model()

    @bentoml.api(batchable=ABOUT["rows"] > 1, max_batch_size=max(2, ABOUT["rows"]), max_latency_ms=60000)  # it takes no batches of one
    def predict(self, x: list[str]) -> list[str]:
        answers = self.model.rows([self.model.decode(base64.b64decode(text)) for text in x])
        return [base64.b64encode(answer.tobytes()).decode() for answer in answers]
