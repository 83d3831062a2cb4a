"""The model that every Python server here runs.

COMPARE_MODEL names a JSON file that says which, with how many threads, and how the server
should run it: the same for all of them. onnxruntime comes from the folder COMPARE_PACKAGES,
so that all have the same one. For behaviours.py there is no model in it: a batch only takes
its time, as test/peers/slow.py has it, and the rows are texts.
"""

import json
import math
import os
import sys

sys.path.append(os.environ["COMPARE_PACKAGES"])  # behind the server's own packages, which may need another numpy

import numpy

with open(os.environ["COMPARE_MODEL"]) as file:
    ABOUT = json.load(file)


def onnx():
    """What runs the inputs, by name, of a batch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = ABOUT["threads"]
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(ABOUT["onnx"], options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run([ABOUT["output"]], inputs)[0]


def slowly():
    """The same for texts, each a row with the numbers of its characters."""
    sys.path.append(ABOUT["slow"])
    import slow

    def run(inputs):
        slow.run(ABOUT["log"], ABOUT["seconds"], ["".join(map(chr, row)).rstrip("\0") for row in inputs["x"].astype(int)])
        return inputs["x"]

    return run


class Model:
    def __init__(self):
        self.batch = slowly() if "log" in ABOUT else onnx()
        self._inputs = [(i["name"], numpy.dtype(i["type"]), i["shape"]) for i in ABOUT["inputs"]]
        self.names = [name for name, _, _ in self._inputs]

    def decode(self, body):
        """A request whose inputs lie one behind the other, one row of each."""
        row, at = [], 0
        for _, kind, shape in self._inputs:
            row.append(numpy.frombuffer(body, kind, math.prod(shape), at).reshape(shape))
            at += row[-1].nbytes
        return row

    def rows(self, requests):
        """The answers to decoded requests, run together."""
        return self.batch({name: numpy.stack([row[i] for row in requests]) for i, name in enumerate(self.names)})
