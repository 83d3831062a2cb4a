#!/usr/bin/env python3
"""Measures the same servers with shoal bench and with Triton's perf_analyzer, in turn.

    python3 test/clients/agreement.py [--window MS] [--pairs N] [--only WORD] [--keep FILE]

The servers are bin/shoal, with the seed device and with an ONNX model, and a real
tritonserver with the seed device, on the same machine as the clients: 1, 4, 16 and
64 of them, over HTTP and over gRPC. Each pair is two runs right after one another,
and who is first changes from pair to pair. What is compared is the ratio of each
pair; the median of these has to be within 5 % for the throughput, and within 10 %
for the 95th percentile of the latency. The CPU time of either tool's process is
stated for each request that the server answered it, the tool's start included.

It prints a table for docs/lab/measurements.md, and last how many figures agree. Pairs that
are measured are kept in a file, so that a run that was ended goes on where it was;
another window or another bin/shoal begins anew. `make measure WHAT=bench-agreement` brings what
it needs first. That wants a quiet machine for half an hour.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import urllib.request

import perf_analyzer
import shoal
import triton
import measure  # where shoal.py looks, too

CLIENTS = [1, 4, 16, 64]
PROTOCOLS = ["http", "grpc"]
THROUGHPUT, P95 = 0.05, 0.10  # by how much the tools may differ

MODEL = shoal.ROOT / "models/text_recognition/1/model.onnx"
# Two instances and batches of 4: what is best for it on two cores.
TEXT_RECOGNITION = """
max_batch_size: 4
dynamic_batching { max_queue_delay_microseconds: 0 }
instance_group [ { count: 2 } ]
"""


class ShoalServer(shoal.Server):
    """bin/shoal with the models that are measured."""

    def __init__(self):
        self._repository = shoal.Repository()
        self._repository.add("text_recognition", TEXT_RECOGNITION, MODEL)
        seed = (shoal.ROOT / "examples/seed-device/seed_dynamic/config.pbtxt").read_text()
        self._repository.add("seed_dynamic", seed)
        try:
            super().__init__(self._repository.path)
        except BaseException:
            self._repository.remove()
            raise

    def stop(self):
        super().stop()
        self._repository.remove()


# A server, and the models to measure on it with the rows of a request.
SERVERS = [
    ("Shoal", ShoalServer, [("seed_dynamic", 2), ("text_recognition", 1)]),
    ("Triton", lambda: triton.Server(triton.MODELS, "--disable-auto-complete-config"), [("seed_device", 2)]),
]


class Cell:
    """One place of the table, and the pairs that were measured for it."""

    def __init__(self, server, model, rows, protocol, clients):
        self.server, self.model, self.rows, self.protocol, self.clients = server, model, rows, protocol, clients
        self.name = f"{server} {model} {protocol} {clients}"
        self.rounds = []

    def measure(self, server, window):
        """One pair, with the other tool first each time."""
        pair = {}
        for name, tool in measure.turn([("bench", self.bench), ("perf_analyzer", self.perf_analyzer)], len(self.rounds)):
            before = self.answered(server)
            used = children()
            pair[name] = tool(server, window)
            pair[name]["cpu_us"] = (children() - used) * 1e6 / (self.answered(server) - before)
        return pair

    def call(self, server):
        where = ["-i", "grpc", "-u", server.grpc] if self.protocol == "grpc" else ["-u", server.http]
        # At random perf_analyzer sends numbers that are none, with which a model may take another time.
        return where, ["-b", str(self.rows), "--input-data", "zero", "--concurrency-range", str(self.clients), "--percentile", "95"]

    def bench(self, server, window):
        where, arguments = self.call(server)
        call = [shoal.BINARY, "bench", "-m", self.model, *where, *arguments, "-p", str(window), "-s", "100000", "--json", "-"]
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode != 0:
            raise perf_analyzer.Wrong(f"{' '.join(map(str, call))}: found exit status {done.returncode}, expected 0\n{done.stderr}")
        client = json.loads(done.stdout)["levels"][0]["client"]
        p95 = next(p["latency_ns"] for p in client["percentiles"] if p["percent"] == 95)
        return {"throughput": client["infers_per_second"], "p95_us": p95 / 1000}

    def perf_analyzer(self, server, window):
        where, arguments = self.call(server)
        level, = perf_analyzer.measure(self.model, where, *arguments, rows=self.rows, clients=self.clients, window=window)
        return {"throughput": level.throughput, "p95_us": level.p95}

    def answered(self, server):
        """How many requests the server has answered so far."""
        with urllib.request.urlopen(f"http://{server.http}/v2/models/{self.model}/stats", timeout=10) as answer:
            return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])

    def middle(self, tool, figure):
        return statistics.median(pair[tool][figure] for pair in self.rounds)

    def ratio(self, figure):
        """Bench's figure as a share of perf_analyzer's, pair by pair."""
        return [pair["bench"][figure] / pair["perf_analyzer"][figure] for pair in self.rounds]

    def row(self):
        def three(values):
            return "{:.3f} [{:.3f}, {:.3f}]".format(*measure.median(values))

        def both(figure, form):
            return " / ".join(form(self.middle(tool, figure)) for tool in ("bench", "perf_analyzer"))

        return " | ".join([
            str(self.clients), both("throughput", lambda v: f"{v:,.0f}"), three(self.ratio("throughput")),
            both("p95_us", lambda v: f"{v / 1000:.2f}"), three(self.ratio("p95_us")), both("cpu_us", lambda v: f"{v:.0f}"),
        ])

    def gates(self):
        for figure, room in (("throughput", THROUGHPUT), ("p95_us", P95)):
            yield f"bench-agreement: {self.name}, {figure}", measure.Bound(1 - room, 1 + room), self.ratio(figure)


def children():
    """CPU seconds of the processes that have ended: the tools, and not the servers, which still run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fill(cells, log, pairs, window):
    """Measures what is missing, one server after the other, and all of its cells once before any of them again."""
    for name, start, _ in SERVERS:
        missing = [cell for cell in cells if cell.server == name and len(cell.rounds) < pairs]
        if not missing:
            continue
        server = start()
        try:
            measure.fill(missing, log, pairs, lambda cell: cell.measure(server, window))
        finally:
            server.stop()


def table(cells, pairs, window):
    print(f"bench / perf_analyzer, and bench's share of the latter: {pairs} pairs, each of three windows of {window} ms.\n")
    print("| clients | infer/s | share | p95, ms | share | CPU of the tool for a request, µs |\n|---|---|---|---|---|---|")
    before = None
    for cell in cells:
        head = f"{cell.server}, {cell.model}, {'gRPC' if cell.protocol == 'grpc' else 'HTTP'}"
        if head != before:
            print(f"| **{head}** | | | | | |")
            before = head
        print(f"| {cell.row()} |")
    print()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, default=1000, metavar="MS", help="length of a window; each run has three (%(default)s)")
    parser.add_argument("--pairs", type=int, default=7, help="of runs for each cell (%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="cells that have this in their names, such as 'Triton' or 'grpc 64'")
    parser.add_argument("--keep", type=pathlib.Path, default=shoal.ROOT / "bin/bench-agreement.jsonl", metavar="FILE", help="where pairs are kept (%(default)s)")
    arguments = parser.parse_args()

    for needed in (shoal.BINARY, perf_analyzer.PERF_ANALYZER, triton.BINARY, MODEL):
        if not needed.exists():
            sys.exit(f"found no {needed}: run make measure WHAT=bench-agreement, which brings it")
    cells = [
        Cell(server, model, rows, protocol, clients)
        for server, _, models in SERVERS for model, rows in models for protocol in PROTOCOLS for clients in CLIENTS
    ]
    cells = [cell for cell in cells if (arguments.only + " ") in (cell.name + " ")]
    log = measure.Log(arguments.keep, measure.under(shoal.BINARY, arguments.window))
    log.read(cells)
    try:
        fill(cells, log, arguments.pairs, arguments.window)
    except perf_analyzer.Wrong as wrong:
        print(f"{wrong}\nwhat was measured is kept in {arguments.keep}; run it again to go on", file=sys.stderr)
        return 1
    table(cells, arguments.pairs, arguments.window)
    return measure.report([gate for cell in cells for gate in cell.gates()])


if __name__ == "__main__":
    sys.exit(main())
