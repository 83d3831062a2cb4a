#!/usr/bin/env python3
"""Loads the same configurations in bin/shoal and in a real tritonserver, and compares the states.

    python3 test/clients/states.py [--record]

Each configuration has a field that people write and that has no effect, or cannot be carried
out, in Triton with its default flags; the model is a model.py. Both servers say in their index
which of them serve. States have to be the same but for those of DIFFERENT. --record keeps
Triton's states in states.json, against which test_states.py holds bin/shoal where there is no
Triton.

`make measure WHAT=states-beside-triton` brings what it needs first. The last line says how many
states are the same or different for a known reason, and how many are not.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import urllib.request

import shoal
import triton

RECORDED = pathlib.Path(__file__).resolve().parent / "states.json"

CONFIG = """backend: "python"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 3, 4, 4 ] {format} }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 3, 4, 4 ] }} ]
{rest}
"""
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"

FIELDS = {
    "format": CPU,
    "response_cache": CPU + "response_cache { enable: true }",
    "rate_limiter": 'instance_group [ { count: 1 kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 4 } ] priority: 2 } } ]',
    "passive": "instance_group [ { count: 1 kind: KIND_CPU }, { count: 1 kind: KIND_CPU passive: true } ]",
    "cc_model_filenames": CPU + 'cc_model_filenames [ { key: "7.5" value: "model75.py" } ]',
    "op_library_filename": CPU + 'model_operations { op_library_filename: "operators.so" }',
    "execution_accelerators": CPU + 'optimization { execution_accelerators { cpu_execution_accelerator : [ { name : "openvino" } ] } }',
    "metric_tags": CPU + 'metric_tags [ { key: "team" value: "search" } ]',
    "host_policy": 'instance_group [ { count: 1 kind: KIND_CPU host_policy: "numa0" } ]',
    "kind_gpu": "instance_group [ { count: 1 kind: KIND_GPU } ]",
    "runtime": CPU + 'runtime: "libown.so"',
}

DIFFERENT = {
    "kind_gpu": ("READY", "Python models see tensors in CPU memory, and run without a GPU"),
}

MODEL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests]
'''


def write(folder):
    """Writes the models."""
    for name, rest in FIELDS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(format="format: FORMAT_NCHW" if name == "format" else "", rest=rest))


def states(server):
    """The state of each model, as the server's index has it."""
    request = urllib.request.Request(f"http://{server.http}/v2/repository/index", data=b"{}", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in json.load(answer)}


FLAGS = ("--exit-on-error=false", "--strict-readiness=false")


def here(models):
    server = shoal.Server(*FLAGS, models, python=shoal.PYTHON, patience=120)
    try:
        found = states(server)
    finally:
        server.stop()
    return found, server.text()  # only now it has all lines


def there(models):
    server = triton.Server(models, *FLAGS)
    try:
        return states(server)
    finally:
        server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true", help="keep Triton's states")
    arguments = parser.parse_args()
    for needed in (shoal.BINARY, triton.BINARY, shoal.PYTHON):
        if not needed.exists():
            sys.exit(f"found no {needed}: run make measure WHAT=states-beside-triton, which brings it")
    with tempfile.TemporaryDirectory(prefix="shoal-states-") as folder:
        models = pathlib.Path(folder)
        write(models)
        (found, _), expected = here(models), there(models)
    same = known = failed = 0
    for name in FIELDS:
        state, reason = found.get(name, ("", ""))
        real, why = expected.get(name, ("", ""))
        verdict = "the same"
        if state == real:
            same += 1
        elif name in DIFFERENT and DIFFERENT[name][0] == state:
            known += 1
            verdict = "different, because " + DIFFERENT[name][1]
        else:
            failed += 1
            verdict = "FAILED"
        print(f"{name:24} Triton {real:12} Shoal {state:12} {verdict}")
        for who, text in (("Triton", why), ("Shoal", reason)):
            if text:
                print(f"{'':24} {who}: {text.splitlines()[0]}")
    if arguments.record:
        RECORDED.write_text(json.dumps({name: expected[name][0] for name in FIELDS}, indent=1) + "\n")
    print(f"{same} the same, {known} different for a known reason")
    print(f"{same + known} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
