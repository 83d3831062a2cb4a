#!/usr/bin/env python3
"""Asks models with sequences of bin/shoal what a real Triton was asked, and compares the answers.

    python3 test/clients/sequences.py [--only WORD]

sequences/cases.json has Triton's answers over gRPC and, in some cases, over HTTP: what each request
was answered, which loads were accepted, which requests the model ran in which rows of which
batches, and which inputs it was given besides the client's. DIFFERENT has the cases in which
bin/shoal answers otherwise, and why; different.json has how. `make measure WHAT=recorded-sequences`
brings what it needs. The last line says how many cases are the same or different for a known
reason, and how many are not.
"""

import concurrent.futures
import json
import pathlib
import queue
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import run

if __name__ == "__main__":
    run.restart_with_clients()

import grpc
import numpy
from tritonclient.grpc import service_pb2, service_pb2_grpc

import recorded

HERE = pathlib.Path(__file__).resolve().parent / "sequences"

# The cases are about times. On a busy machine a request may come too late, so that what was different is asked again.
ATTEMPTS = 3

STATUS = "a parameter of the wrong type is answered with 400 over HTTP; Triton answers with 500"
UNSIGNED = "IDs from 2^63 are accepted over gRPC, as uint64_param"
STRINGS = "Triton refuses all requests to a model whose control for the ID is a string; here they run"
CUT = "an ID that does not fit into the control is refused; Triton cuts it, so that two sequences may have the same"
FOLLOWERS = "the requests behind one that was cancelled get a message, at once; Triton sends an empty one when they would have run"
OVERTAKEN = "in Triton the first request that arrives while the instance is busy is overtaken by the later ones; here it is not"

# What is answered otherwise than in Triton.
DIFFERENT = {
    "id zero or absent": STATUS,
    "start not bool": STATUS,
    "id large": UNSIGNED,
    "corrid int64": UNSIGNED,
    "string id numeric control": "a string as the ID is refused if the control is a number; Triton gives the model the first bytes of the string",
    "string id string control": STRINGS,
    "string id string control no batch": STRINGS,
    "string id string control batch 1": STRINGS,
    "string id string control oldest": STRINGS,
    "corrid int32": CUT,
    "corrid uint32": CUT,
    "idle in backlog": "a sequence that waits for a slot is not idle; Triton ends it after its first request",
    "direct shapes": "requests of different shapes run in the order in which they became the next of their sequences; in Triton in the order of the rows",
    "direct cancel queued": FOLLOWERS,
    "oldest cancel queued": FOLLOWERS,
    "direct cancel backlog": "a sequence whose first request was cancelled has ended at once; in Triton it takes more requests until it would get a slot",
    "direct http close": "a closed connection cancels the request and those behind it; Triton does not notice it",
    "oldest interleaved 3": OVERTAKEN,
    "oldest candidates above batch": OVERTAKEN,
    "oldest preserve ordering": OVERTAKEN,
    "oldest overtaken": OVERTAKEN,
    "bad control is input": "a control that is also an input is refused; in Triton the model gets it twice",
    "state python": "a state begins with zeros, and is kept for Python models, too; Triton gives them uninitialised memory",
}


class Case:
    """A server with the models of a case, and what it is asked over one protocol."""

    def __init__(self, case, asked, folder):
        self.case, self.protocol = case, asked["protocol"]
        self.record = folder / "record"
        self.record.touch()
        self.repository = folder / "models"
        recorded.write_models(case, lambda model: (HERE / "model.py").read_text(), self.record, self.repository)

    def answers(self):
        """The answers of bin/shoal, the batches that the model ran, and the inputs that it was given."""
        server = recorded.start(self.case, self.repository)
        try:
            self.http = server.http
            with grpc.insecure_channel(server.grpc) as channel:
                grpc.channel_ready_future(channel).result(timeout=20)
                self.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                given = []
                for step in self.case["steps"]:
                    given += self.group(step) if isinstance(step, list) else self.step(step)
        finally:
            server.stop()
        ran, controls = [], {}
        for line in self.record.read_text().splitlines():
            ids, inputs = json.loads(line)
            ran.append(ids)
            controls.update({one: found for one, found in zip(ids, inputs) if one != "-"})
        return given, ran, controls

    def group(self, steps):
        """Requests at their times, in milliseconds from now. Those of the same time are sent one after the other."""
        began, at, due = time.monotonic(), -1, 0
        futures = []
        with concurrent.futures.ThreadPoolExecutor(len(steps)) as pool:
            for step in steps:
                due = max(due + 0.004 if step["at"] == at else 0, step["at"] / 1000)
                at = step["at"]
                time.sleep(max(0, began + due - time.monotonic()))
                futures.append(pool.submit(self.step, step))
            return [answer for future in futures for answer in future.result()]

    def step(self, step):
        do = step.get("do", "infer")
        match do:
            case "infer":
                ask = self.over_http if self.protocol == "http" else self.over_grpc
                return [[step.get("id") or do, ask(step)]]
            case "stream":
                return self.stream(step["messages"])
            case "sleep":
                time.sleep(step["ms"] / 1000)
            case "load" | "unload":
                return [[do, {"ok": self.post(f"/v2/repository/models/{step['model']}/{do}", {})[0] == 200}]]
        return []  # statistics and the index are not compared

    def parameters(self, step):
        given = dict(step.get("params", {}))
        if "seq" in step:
            given["sequence_id"] = step["seq"]
        for key in "start", "end":
            if key in step:
                given[f"sequence_{key}"] = step[key]
        if "timeout_us" in step:
            given["timeout"] = step["timeout_us"]
        return given

    def over_http(self, step):
        shape = step.get("shape", self.shape())
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": shape, "data": [step.get("v", 0)] * int(numpy.prod(shape))}
        body = {"id": step["id"], "inputs": [tensor], "parameters": self.parameters(step)}
        status, answer = self.post(f"/v2/models/{step.get('model', 'm')}/infer", body, step.get("cancel_at"))
        if status == 200:
            return {"outputs": {out["name"]: [out["datatype"], out["shape"], out["data"]] for out in answer["outputs"]}}
        return {"status": status, "error": answer["error"]}

    def shape(self):
        return [1] if "max_batch_size: 0" in self.case["models"]["m"][0] else [1, 1]

    def post(self, path, body, cancel_at=None):
        request = urllib.request.Request(f"http://{self.http}{path}", method="POST", data=json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=cancel_at / 1000 if cancel_at else 20) as answer:
                return answer.status, json.loads(answer.read() or "{}")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except TimeoutError:
            return "CLOSED", {"error": ""}

    def message(self, step):
        request = service_pb2.ModelInferRequest(model_name=step.get("model", "m"), id=step["id"])
        shape = step.get("shape", self.shape())
        request.inputs.add(name="INPUT", datatype="INT32", shape=shape)
        request.raw_input_contents.append(numpy.full(shape, step.get("v", 0), dtype=numpy.int32).tobytes())
        for name, value in self.parameters(step).items():
            match value:
                case bool():
                    request.parameters[name].bool_param = value
                case int() if value < 1 << 63:
                    request.parameters[name].int64_param = value
                case int():
                    request.parameters[name].uint64_param = value
                case float():
                    request.parameters[name].double_param = value
                case str():
                    request.parameters[name].string_param = value
        return request

    def over_grpc(self, step):
        try:
            return self.outputs(self.cancelled(step) if "cancel_at" in step else self.stub.ModelInfer(self.message(step)))
        except grpc.RpcError as error:
            return {"status": error.code().name, "error": error.details()}
        except grpc.FutureCancelledError:
            return {"status": "CANCELLED", "error": "(cancelled by the client)"}

    def cancelled(self, step):
        """Cancels a request at a time after it was sent."""
        future = self.stub.ModelInfer.future(self.message(step))
        threading.Timer(step["cancel_at"] / 1000, future.cancel).start()
        return future.result()

    def outputs(self, response):
        return {
            "outputs": {
                out.name: [out.datatype, list(out.shape), numpy.frombuffer(raw, dtype=numpy.int32).tolist()] for out, raw in zip(response.outputs, response.raw_output_contents)
            }
        }

    def stream(self, messages):
        """Sends messages on a stream at their times."""
        waiting = queue.Queue()
        answers = self.stub.ModelStreamInfer(iter(waiting.get, None))
        began = time.monotonic()
        for step in messages:
            time.sleep(max(0, began + step["at"] / 1000 - time.monotonic()))
            waiting.put(self.message(step))
        waiting.put(None)
        return [
            [answer.infer_response.id, {"error": answer.error_message} if answer.error_message else self.outputs(answer.infer_response)] for answer in answers
        ]


def differences(case):
    for asked in case["runs"]:
        with tempfile.TemporaryDirectory(prefix="shoal-sequences-") as folder:
            given, ran, controls = Case(case, asked, pathlib.Path(folder)).answers()
        protocol = asked["protocol"]
        yield from recorded.compare(asked["answers"], given, protocol + ", ")
        if ran != asked["ran"]:
            yield f"{protocol}, batches: Triton {json.dumps(asked['ran'])}\n      here {json.dumps(ran)}"
        for name, inputs in asked["controls"].items():
            if name in controls and controls[name] != inputs:
                yield f"{protocol}, inputs of {name}: Triton {json.dumps(inputs)}\n      here {json.dumps(controls[name])}"


if __name__ == "__main__":
    sys.exit(recorded.main(HERE / "cases.json", DIFFERENT, differences, ATTEMPTS))
