#!/usr/bin/env python3
"""Measures the same handler in bin/shoal and in the real multi-model-server, with ab, in turn.

    python3 test/peers/speed.py [--seconds N] [--pairs N] [--only WORD] [--keep FILE]

The handler runs a perceptron of two layers with ONNX Runtime, in the same Python with the same packages, with batches of up to 8 that are collected for 5 ms, and
one worker. Each server is idle while the other is measured, and who is first changes from pair to pair. What is compared is the ratio of each pair; the median of
these has to be at least 1.2 for the throughput, and at most 1 for the 99th percentile of the latency.

Pairs are kept in a file, so that a run that was ended goes on where it was; another bin/shoal or another length begins anew. `make measure WHAT=peers-speed` brings what it
needs first.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import load
import servers
import measure  # where servers.py looks, too

CLIENTS = [8, 64, 256]
THROUGHPUT = 1.2  # times that of the other, at least

MODEL = servers.shoal.ROOT / "models/mlp/1/model.onnx"
BODY = b"\0\0\0\x3f" * 128  # 128 numbers, each a half

HANDLER = """
import os

import numpy
import onnxruntime

session = None


def handle(data, context):
    global session
    if session is None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(os.path.join(context.system_properties["model_dir"], "model.onnx"), options)
    if data is None:
        return None
    rows = numpy.stack([numpy.frombuffer(d["body"], numpy.float32) for d in data])
    return [y.tobytes() for y in session.run(None, {"x": rows})[0]]
"""


class Cell:
    """One number of clients, and the pairs that were measured for it."""

    def __init__(self, clients):
        self.clients, self.name = clients, f"mlp {clients}"
        self.rounds = []

    def measure(self, both, seconds):
        pair = {}
        for name in measure.turn(both, len(self.rounds)):
            # The number is out of reach: the time ends it.
            said = load.run(both[name].infer, "/predictions/mlp", BODY, "application/octet-stream", self.clients, "-t", str(seconds), "-n", "1000000")
            if said.failed or said.others:
                raise servers.Wrong(f"{name}: found {said.failed} that failed and {said.others} answers other than 2xx, expected none:\n{said.text}")
            pair[name] = {"throughput": said.rate, "p50": said.p50, "p99": said.p99}
        return pair

    def ratio(self, figure):
        return [pair["Shoal"][figure] / pair["MMS"][figure] for pair in self.rounds]

    def row(self):
        def both(figure, form):
            return " / ".join(form.format(statistics.median(pair[name][figure] for pair in self.rounds)) for name in ("Shoal", "MMS"))

        ratios = ["{:.2f} [{:.2f}, {:.2f}]".format(*measure.median(self.ratio(figure))) for figure in ("throughput", "p99")]
        return " | ".join([str(self.clients), both("throughput", "{:,.0f}"), ratios[0], both("p50", "{:.2f}"), both("p99", "{:.2f}"), ratios[1]])

    def gates(self):
        yield f"peers-speed: {self.name}, throughput", measure.at_least(THROUGHPUT), self.ratio("throughput")
        yield f"peers-speed: {self.name}, p99", measure.at_most(1), self.ratio("p99")


def fill(cells, log, pairs, seconds):
    """Measures what is missing, all cells once before any of them again."""
    if all(len(cell.rounds) >= pairs for cell in cells):
        return
    kind = servers.KINDS["mms"]
    with tempfile.TemporaryDirectory(prefix="shoal-speed-") as folder:
        folder = pathlib.Path(folder)
        for name in ("store", "here", "there", "archives"):
            (folder / name).mkdir()
        kind.archive(folder / "store", folder / "archives", "mlp", {"service.py": HANDLER, "model.onnx": MODEL.read_bytes()})
        room = "job_queue_size=1000\n"
        with servers.Shoal(kind, folder / "here", folder / "store", room) as here, servers.Real(kind, folder / "there", folder / "store", room) as there:
            both = {"Shoal": here, "MMS": there}
            for server in both.values():
                server.register("url=mlp.mar&batch_size=8&max_batch_delay=5&initial_workers=1")
                load.run(server.infer, "/predictions/mlp", BODY, "application/octet-stream", 64, "-t", "2", "-n", "1000000")  # Java is slow at first
            measure.fill(cells, log, pairs, lambda cell: cell.measure(both, seconds))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=5, help="that one run takes (%(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="of runs for each number of clients (%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="cells that have this in their names, such as 'mlp 64'")
    parser.add_argument("--keep", type=pathlib.Path, default=servers.shoal.ROOT / "bin/peers-speed.jsonl", metavar="FILE", help="where pairs are kept (%(default)s)")
    arguments = parser.parse_args()
    servers.check([servers.KINDS["mms"]])
    load.check()
    if not MODEL.exists():
        raise servers.Wrong(f"found no {MODEL}: run tools/get-models models mlp")
    cells = [Cell(clients) for clients in CLIENTS]
    cells = [cell for cell in cells if (arguments.only + " ") in (cell.name + " ") or arguments.only == ""]
    log = measure.Log(arguments.keep, measure.under(servers.shoal.BINARY, arguments.seconds))
    log.read(cells)
    fill(cells, log, arguments.pairs, arguments.seconds)
    print(f"Shoal / MMS, and Shoal's share of the latter: {arguments.pairs} pairs, each run of {arguments.seconds} s.\n")
    print("| clients | requests/s | share | p50, ms | p99, ms | share |\n|---|---|---|---|---|---|")
    for cell in cells:
        print(f"| {cell.row()} |")
    print()
    return measure.report([gate for cell in cells for gate in cell.gates()])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except servers.Wrong as wrong:
        sys.exit(str(wrong))
