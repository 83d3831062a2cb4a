"""Ray Serve, with bodies of bytes. Its gRPC takes a service that a user defines, and was not measured."""

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

import onnx_model

ABOUT = onnx_model.ABOUT


@serve.deployment(num_replicas=ABOUT["workers"], max_ongoing_requests=128, ray_actor_options={"num_cpus": 0.5})
class Deployment:
    def __init__(self):
        self.model = onnx_model.Model()

    @serve.batch(max_batch_size=ABOUT["rows"], batch_wait_timeout_s=ABOUT["wait"])
    async def together(self, requests):
        return list(self.model.rows(requests))

    async def __call__(self, request: Request):
        answer = await self.together(self.model.decode(await request.body()))
        return Response(answer.tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20, _node_ip_address="127.0.0.1", _temp_dir=ABOUT["folder"])
    serve.start(http_options={"host": "127.0.0.1", "port": ABOUT["port"]})
    serve.run(Deployment.bind(), blocking=True)
