"""LitServe. A body of bytes is not among what it takes, so requests are base64 in JSON; answers are bytes."""

import base64

import litserve
from starlette.responses import Response

import onnx_model


class Alone(litserve.LitAPI):
    """Without batching."""

    def setup(self, device):
        self.model = onnx_model.Model()

    def decode_request(self, request):
        return self.model.decode(base64.b64decode(request["b64"]))

    def predict(self, request):
        return self.model.rows([request])[0]

    def encode_response(self, answer):
        return Response(answer.tobytes(), media_type="application/octet-stream")


class Together(Alone):
    def batch(self, requests):
        return requests

    def predict(self, requests):
        return self.model.rows(requests)

    def unbatch(self, answers):
        return list(answers)


if __name__ == "__main__":
    about = onnx_model.ABOUT
    api = Together(max_batch_size=about["rows"], batch_timeout=about["wait"]) if about["rows"] > 1 else Alone()
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=about["workers"], track_requests=False)
    server.run(host="127.0.0.1", port=about["port"], num_api_servers=1, generate_client_file=False, log_level="warning", access_log=False)
