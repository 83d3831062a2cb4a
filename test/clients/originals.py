#!/usr/bin/env python3
"""Runs Triton's own example clients with bin/shoal, which serves the models of Triton's examples.

    git clone --depth 1 https://github.com/triton-inference-server/client CLIENT
    python3 test/clients/originals.py CLIENT/src/python/examples

The models are those of examples/: the names and interfaces of Triton's, with small nets. The
server has its default flags, but for a name that two of the clients insist on, system shared
memory, and explicit model control for the one that loads models. The last line says how many
passed, failed, and were left out because they need what no server has here.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import run
import shoal

EXAMPLES = pathlib.Path(__file__).resolve().parent / "examples"

# Clients that need something else than a server that is complete.
ELSEWHERE = {
    "simple_grpc_cudashm_client": "needs a GPU",
    "simple_http_cudashm_client": "needs a GPU",
    "simple_grpc_custom_repeat": "needs Triton's repeat backend",
    "simple_grpc_model_control": "looks for a message about Triton's own directories",
    "ensemble_image_client": "needs an ensemble that the examples no longer have",
    "grpc_image_client": "needs a picture",
    "image_client": "needs a picture",
    "memory_growth_test": "is a test of the client library",
}
# What fails, and why. Anything else that fails is a defect, and so is one of these that passes.
FAILS = {}
EXPLICIT = "simple_http_model_control"  # it counts seven models: inception_onnx is not among them


def call(python, client, address):
    command = [python, client, "-u", address]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=client.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120)
    return ran.returncode == 0 and "FAILED" not in ran.stdout, ran.stdout


def address(server, name):
    return server.grpc if "grpc" in name else server.http


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path, help="src/python/examples of Triton's client repository")
    arguments = parser.parse_args()
    python = run.install()[-1]
    clients = {path.stem: path.resolve() for path in sorted(arguments.folder.glob("*.py"))}
    if not clients:
        sys.exit(f"found no clients in {arguments.folder}, expected src/python/examples of Triton's client repository")
    passed, failed, skipped = 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="shoal-originals-") as folder:
        seven = pathlib.Path(folder) / "models"
        shutil.copytree(EXAMPLES, seven, ignore=shutil.ignore_patterns("inception_onnx"))
        flags = ["--id", "triton", "--allow-client-shm"]
        for explicit in (False, True):
            more = ["--model-control-mode", "explicit", seven] if explicit else [EXAMPLES]
            server = shoal.Server(*flags, *more, python=shoal.PYTHON)
            try:
                for name, path in clients.items():
                    if (name == EXPLICIT) != explicit:
                        continue
                    if name in ELSEWHERE:
                        skipped += 1
                        print(f"skip  {name}: {ELSEWHERE[name]}", flush=True)
                        continue
                    ok, text = call(python, path, address(server, name))
                    passed += ok
                    failed += not ok
                    print(f"{'ok  ' if ok else 'FAIL'}  {name}" + (f": {FAILS[name]}" if name in FAILS and not ok else ""), flush=True)
                    if ok == (name in FAILS):
                        print(text, end="" if text.endswith("\n") else "\n", flush=True)
            finally:
                server.stop()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed > len(FAILS) else 0


if __name__ == "__main__":
    sys.exit(main())
