#!/usr/bin/env python3
"""Brings Shoal and the servers that it is compared with into five kinds of trouble.

    python3 test/compare/behaviours.py [--only WORD] [--keep FILE] [--program FILE]

What is played is in test/peers/behave.py, for all of them with a handler that takes half a
second for a batch of up to 8. The findings are kept, a line of JSON for each, and what is there is not played again;
the page of `make measure WHAT=compare` shows them, and it plays them last. What starts the servers is the program of test/compare,
bin/compare/compare if make measure WHAT=compare has built it.
"""

import argparse
import base64
import json
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/peers"))

import behave
import servers

LENGTH = 32  # of a text, whose characters are sent as numbers

JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}


def numbers(text):
    return [float(ord(c)) for c in text.ljust(LENGTH, "\0")]


def packed(text):
    return struct.pack(f"<{LENGTH}f", *numbers(text))


def as_bytes(text):
    return BYTES, packed(text)


def as_base64(text):
    return JSON, json.dumps({"b64": base64.b64encode(packed(text)).decode()}).encode()


def as_list(text):
    return JSON, json.dumps({"x": [base64.b64encode(packed(text)).decode()]}).encode()


def as_kserve(text):
    return JSON, json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, LENGTH], "data": numbers(text)}]}).encode()


class Held:
    """A server that bin/compare/compare starts. It has what behave.Registered has."""

    program = ROOT / "bin/compare/compare"

    def __init__(self, title, path, ready, request, refusals=()):
        self.title, self.path, self.ready, self.request, self.refusals = title, path, ready, request, refusals

    def start(self, folder):
        self.log = folder / "ran.jsonl"
        self.log.touch()
        self.process = subprocess.Popen([self.program, "-hold", self.title, "-log", self.log], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline().split()
        if len(said) != 2:
            raise servers.Wrong(f"{self.title} does not start; why is above")
        self.address, self._main = said[0], int(said[1])

    def main(self):
        return self._main

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


INFER, READY = "/v2/models/m/infer", "/v2/health/ready"
SERVERS = [
    Held("Shoal", INFER, READY, as_kserve, (429,)),
    Held("Triton", INFER, READY, as_kserve, (503,)),
    behave.SERVERS["mms"],
    behave.SERVERS["torchserve"],
    Held("LitServe", "/predict", "/health", as_base64),
    Held("BentoML", "/predict", "/readyz", as_list),
    Held("MLServer", INFER, READY, as_kserve),
    Held("Ray Serve", "/", "/-/healthz", as_bytes),
]
# Few of them have a way for a handler to say which of several requests is bad.
TROUBLES = [name for name in behave.BEHAVIOURS if name != "one of eight is bad, and the handler says so"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD", help="those that have this in server and trouble, such as 'Triton: SIGTERM'")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / "bin/compare/behaviours.jsonl", metavar="FILE", help="where findings are kept (%(default)s)")
    parser.add_argument("--program", type=pathlib.Path, default=Held.program, metavar="FILE", help="(%(default)s)")
    arguments = parser.parse_args()
    Held.program = arguments.program
    arguments.keep.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in arguments.keep.read_text().splitlines()] if arguments.keep.exists() else []
    there = {(line["server"], line["trouble"]) for line in kept}
    for trouble in TROUBLES:
        for server in SERVERS:
            if (server.title, trouble) in there or arguments.only not in f"{server.title}: {trouble}":
                continue
            try:
                finding = behave.play(server, trouble)
            except servers.Wrong as wrong:
                finding = behave.Finding(False, f"not played: {wrong}".split("\n")[0])
            print(f"{server.title}: {trouble}: {finding.words}", flush=True)
            with open(arguments.keep, "a") as file:
                kept.append({"server": server.title, "trouble": trouble, "words": finding.words, "good": finding.good})
                file.write(json.dumps(kept[-1]) + "\n")
    bad = [line for line in kept if line["server"].startswith("Shoal") and not line["good"]]
    for line in bad:
        print(f"FAILED {line['server']}: {line['trouble']}: {line['words']}")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
