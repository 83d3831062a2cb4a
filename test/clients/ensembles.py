#!/usr/bin/env python3
"""Asks ensembles of bin/shoal what a real Triton was asked, and compares the answers.

    python3 test/clients/ensembles.py [--only WORD]

ensembles/cases.json has Triton's answers over gRPC: what each request was answered, which loads
were accepted, what was ready, and which requests each member ran in which batches. DIFFERENT has
the cases in which bin/shoal answers otherwise, and why; different.json has how. `make measure
WHAT=ensembles` brings what it needs. The last line says how many cases are the same or different
for a known reason, and how many are not.
"""

import concurrent.futures
import json
import pathlib
import sys
import tempfile
import time
import urllib.error
import urllib.request

import run

if __name__ == "__main__":
    run.restart_with_clients()

import numpy
import tritonclient.grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

import recorded

HERE = pathlib.Path(__file__).resolve().parent / "ensembles"

SUBSET = "asking for outputs of which a step reads one fails in Triton with a deadlock; here it answers"
LATER = "decoupled members are not supported yet"
UNLOADED = "in Triton a member that is unloaded takes the ensemble with it; here the ensemble stays, and is not ready"

# What is answered otherwise than in Triton: the steps, or all of a case.
DIFFERENT = {
    "requested subset": SUBSET,
    "step missing output": "a model that omits an output that it was asked for fails here, not the step after it",
    "step missing unneeded output": SUBSET,
    "output is intermediate": SUBSET,
    "decoupled step": LATER,
    "decoupled step undeclared": LATER,
    "cancel between steps": "Triton runs the steps of a cancelled request; here they do not run",
    "load order": UNLOADED,
    "timeout through": "the timeout of a request to an ensemble, which has no queue policy, is its deadline here",
    "warmup step": "a sample of several rows is one request here, and one for each row in Triton",
    "unload after branch error": "the recording of Triton ended before the branch that goes on",
}


class Case:
    """A server with the models of a case, and what it is asked."""

    def __init__(self, case, folder):
        self.case = case
        self.record = folder / "record"
        self.record.touch()
        self.repository = folder / "models"
        recorded.write_models(case, self.code, self.record, self.repository)

    def code(self, model):
        return (HERE / "model.py").read_text()

    def answers(self):
        """The answers of bin/shoal in the form of cases.json, and the batches that the members ran."""
        self.server = recorded.start(self.case, self.repository)
        try:
            with tritonclient.grpc.InferenceServerClient(self.server.grpc) as self.client:
                given = []
                for step in self.case["steps"]:
                    given += self.group(step) if isinstance(step, list) else self.step(step)
        finally:
            self.server.stop()
        ran = {}
        for line in self.record.read_text().splitlines():
            model, ids = json.loads(line)
            ran.setdefault(model, []).append(ids)
        return given, ran

    def group(self, steps):
        """Requests at their times, in milliseconds from now."""
        began = time.monotonic()

        def ask(step):
            time.sleep(max(0, began + step["at"] / 1000 - time.monotonic()))
            return self.step(step)

        with concurrent.futures.ThreadPoolExecutor(len(steps)) as pool:
            return [answer for answers in pool.map(ask, steps) for answer in answers]

    def step(self, step):
        do = step.get("do", "infer")
        name = step.get("name", step.get("id") or do)
        match do:
            case "infer":
                return [[name, self.infer(step)]]
            case "sleep":
                time.sleep(step["ms"] / 1000)
            case "load" | "unload":
                return [[name, {"ok": self.succeeds(getattr(self.client, f"{do}_model"), step["model"])}]]
            case "ready":
                path = f"/v2/models/{step['model']}/ready" if "model" in step else "/v2/health/ready"
                return [[name, {"ok": self.get(path)}]]
            case "index":
                models = self.client.get_model_repository_index(as_json=True).get("models", [])
                return [[name, {"ready": sorted(f"{m['name']} {m['version']}" for m in models if m.get("state") == "READY")}]]
            case "http" if name != "config":
                return [[name, {"ok": self.get(step["path"], step.get("method", "GET"), step.get("body"))}]]
        return []  # statistics and metrics are not compared

    def inputs(self, step):
        inputs = []
        for tensor in step["inputs"]:
            given = tritonclient.grpc.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
            given.set_data_from_numpy(self.array(tensor["data"], tensor["datatype"]).reshape(tensor["shape"]))
            inputs.append(given)
        return inputs

    def outputs(self, result):
        made = sorted(result.get_response().outputs, key=lambda out: out.name)
        return {out.name: [out.datatype, list(out.shape), self.values(result.as_numpy(out.name))] for out in made}

    def array(self, data, datatype):
        if datatype == "BYTES":
            return numpy.array([text.encode() for text in data], dtype=object)
        return numpy.array(data, dtype=triton_to_np_dtype(datatype))

    def values(self, array):
        return [one.decode() if isinstance(one, bytes) else one for one in array.reshape(-1).tolist()]

    def infer(self, step):
        outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in step.get("outputs", [])] or None
        try:
            result = self.client.infer(
                step.get("model", "e"), self.inputs(step), model_version=step.get("version", ""), outputs=outputs, request_id=step.get("id", ""), priority=step.get("priority", 0), timeout=step.get("timeout_us"),
                sequence_id=step.get("seq", 0), sequence_start=step.get("start", False), sequence_end=step.get("end", False), parameters=step.get("params"),
                client_timeout=step["cancel_at"] / 1000 if "cancel_at" in step else None,
            )
        except InferenceServerException as error:
            return {"status": error.status().removeprefix("StatusCode."), "error": error.message()}
        return {"outputs": self.outputs(result)}

    def succeeds(self, do, *arguments):
        try:
            do(*arguments)
        except InferenceServerException:
            return False
        return True

    def get(self, path, method="GET", body=None):
        request = urllib.request.Request(f"http://{self.server.http}{path}", method=method, data=json.dumps(body).encode() if body else None)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False


def batches(ran, case):
    """The batches of each model. Their order is that in which requests happened to come, unless requests have priorities."""
    ordered = list if "priority" in case["name"] else sorted
    return {model: ordered(sorted(ids) for ids in all) for model, all in ran.items()}


def differences(case):
    with tempfile.TemporaryDirectory(prefix="shoal-ensembles-") as folder:
        given, ran = Case(case, pathlib.Path(folder)).answers()
    yield from recorded.compare(case["answers"], given)
    expected, found = (batches(all, case) for all in (case["ran"], ran))
    if found != expected:
        yield f"batches: Triton {json.dumps(expected, sort_keys=True)}\n      here {json.dumps(found, sort_keys=True)}"


if __name__ == "__main__":
    sys.exit(recorded.main(HERE / "cases.json", DIFFERENT, differences))
