"""MLServer. Its KServe v2 has no binary tensors over HTTP, so that these are JSON; over gRPC they are bytes."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

import onnx_model


class Runtime(MLModel):
    async def load(self) -> bool:
        self.model = onnx_model.Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        answers = self.model.batch({i.name: NumpyCodec.decode_input(i) for i in payload.inputs})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", answers)])
