#!/usr/bin/env python3
"""Asks models whose responses are cached what a real Triton was asked, and compares the answers.

    python3 test/clients/cache.py [--only WORD]

cache/cases.json has Triton's answers over gRPC: what each request was answered, which requests the
models ran, and what statistics and metrics counted. DIFFERENT has the cases in which bin/shoal
answers otherwise, and why; different.json has how. `make measure WHAT=recorded-cache` brings what
it needs. The last line says how many cases are the same or different for a known reason, and how
many are not.
"""

import json
import pathlib
import queue
import sys
import tempfile
import urllib.request

import run

if __name__ == "__main__":
    run.restart_with_clients()

import tritonclient.grpc

import ensembles
import recorded
import shoal

HERE = pathlib.Path(__file__).resolve().parent / "cache"

ALL = "Triton answers with all outputs in the cache, whichever a request asks for; here it runs, and gets its own"
SHAPE = "in Triton a request of another shape with the same bytes gets the cached answer; here it runs"
STREAM = "in Triton a model with response_cache fails over a stream; here it answers"
REFUSED = "Triton counts no request that it refuses; here it counts as one that failed"

# What is answered otherwise than in Triton.
DIFFERENT = {
    "parameters differ": "Triton ignores parameters and the sequence, which a model may read; here requests with others run",
    "outputs differ": ALL,
    "outputs differ all first": ALL,
    "ensemble subset": ALL,
    "shape differs": SHAPE,
    "batch differs": SHAPE,
    "errors repeated": "Triton caches an error as a response without outputs; here errors are not cached",
    "reload keeps entries": "in Triton a model that was unloaded and loaded again gives its old answers; here it runs",
    "stream": STREAM,
    "stream single": STREAM,
    "queue policy and hit": REFUSED,
    "unknown hit order": REFUSED,
    "flag old flag": "the flag of older Tritons is refused",
}


class Case(ensembles.Case):
    """A server with the models of a case, and what it is asked."""

    def code(self, model):
        return (HERE / "caller.py" if model == "caller" else ensembles.HERE / "model.py").read_text()

    def step(self, step):
        do = step.get("do", "infer")
        name = step.get("name", do)
        match do:
            case "stats":
                return [[name, {"stats": self.statistics(step.get("model", "m"))}]]
            case "metrics":
                return [[name, {"metrics": self.metrics()}]]
            case "stream":
                return self.stream(step["messages"])
        return super().step(step)

    def statistics(self, model):
        counted = self.client.get_inference_statistics(model).model_stats
        durations = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
        return [
            {
                "name": m.name, "version": m.version, "inference_count": m.inference_count, "execution_count": m.execution_count,
                **{each: getattr(m.inference_stats, each).count for each in durations},
                "batch_stats": {str(size.batch_size): size.compute_infer.count for size in m.batch_stats},
            }
            for m in sorted(counted, key=lambda m: m.version)
        ]

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.server.metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("nv_cache_num") and "per_model" in line}

    def stream(self, messages):
        came = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(self.server.grpc) as client:
            client.start_stream(lambda result, error: came.put((result, error)))
            for message in messages:
                client.async_stream_infer(message.get("model", "m"), self.inputs(message), request_id=message["id"])
            given = [came.get(timeout=10) for _ in messages]
        return [[message["id"], {"error": error.message()} if error else {"outputs": self.outputs(result)}] for message, (result, error) in zip(messages, given)]


def shortened(answers):
    """The answers with the beginning of large outputs, which is what the file has of them."""
    for _, answer in answers:
        for output in answer.get("outputs", {}).values():
            if len(output[2]) > 1000:
                output[2] = output[2][:4]
    return answers


def differences(case):
    with tempfile.TemporaryDirectory(prefix="shoal-cache-") as folder:
        try:
            given, ran = Case(case, pathlib.Path(folder)).answers()
        except shoal.Ended:
            if case["starts"]:
                yield "the server does not start"
            return
    if not case["starts"]:
        yield "the server starts"
        return
    yield from recorded.compare(case["answers"], shortened(given))
    ran.pop("caller", None)
    expected, found = (ensembles.batches(all, case) for all in (case["ran"], ran))
    if found != expected:
        yield f"batches: Triton {json.dumps(expected, sort_keys=True)}\n      here {json.dumps(found, sort_keys=True)}"


if __name__ == "__main__":
    sys.exit(recorded.main(HERE / "cases.json", DIFFERENT, differences, attempts=3))
