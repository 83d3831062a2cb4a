"""MMS and TorchServe, with bodies of bytes."""

import onnx_model

model = None


def handle(data, context):
    global model
    if model is None:
        model = onnx_model.Model()
    if data is None:
        return None
    answers = model.rows([model.decode(request.get("body") or request.get("data")) for request in data])
    return [answer.tobytes() for answer in answers]
