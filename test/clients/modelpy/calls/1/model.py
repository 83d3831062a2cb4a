import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def loaded(config=None, source=None):
    """What else load_model is told: a configuration, and with it the text of a model.py."""
    more = {}
    if config is not None:
        more["config"] = json.dumps(config)
    if source is not None:
        more["files"] = {"file:1/model.py": source.encode()}
    return more


class TritonPythonModel:
    """Calls other models as a script says, and answers what it saw."""

    async def execute(self, requests):
        return [await self.answer(r) for r in requests]

    async def answer(self, r):
        script = json.loads(pb_utils.get_input_tensor_by_name(r, "SCRIPT").as_numpy()[0])
        try:
            seen = await self.play(script)
        except Exception as e:
            seen = {"raises": type(e).__name__, "text": str(e)}
        if isinstance(seen, pb_utils.TritonError):
            return pb_utils.InferenceResponse(error=seen)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([json.dumps(seen)], np.object_))])

    async def play(self, script):
        how, *rest = script
        if how == "ready":
            return pb_utils.is_model_ready(*rest)
        if how == "load":
            return pb_utils.load_model(model_name=rest[0], **loaded(*rest[1:]))
        if how == "unload":
            return pb_utils.unload_model(*rest)
        if how == "exec":
            return self.see(self.request(rest[0]).exec())
        if how == "async":
            responses = await asyncio.gather(*(self.request(q).async_exec() for q in rest))
            return [self.see(p) for p in responses]
        if how == "stream":
            return [self.see(p) for p in self.request(rest[0]).exec(decoupled=True)]
        if how == "hand on":
            response = self.request(rest[0]).exec()
            return response.error() if response.has_error() else self.see(response)
        raise ValueError(how)

    def request(self, q):
        inputs = []
        for name, (kind, values) in q["inputs"].items():
            inputs.append(pb_utils.Tensor(name, np.array(values, np.object_ if kind == "BYTES" else kind)))
        extra = {k: v for k, v in q.items() if k not in ("model", "inputs", "outputs")}
        return pb_utils.InferenceRequest(model_name=q["model"], inputs=inputs, requested_output_names=q["outputs"], **extra)

    def see(self, response):
        if response.has_error():
            return {"error": response.error().message()}
        seen = {}
        for t in response.output_tensors():
            array = t.as_numpy()
            seen[t.name()] = [str(array.dtype), list(array.shape), [v.decode() if isinstance(v, bytes) else v for v in array.reshape(-1).tolist()]]
        return seen
