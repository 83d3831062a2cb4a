#!/usr/bin/env python3
"""Runs Triton's perf_analyzer against bin/shoal and checks what it reports.

    python3 test/clients/perf_analyzer.py [--short] [--window MS]

First each way of making load, shortly. Then, unless --short is given, the seed
device's three models under 2 to 16 clients over HTTP and over gRPC: a table beside
the figures that Triton reached with the same model on an A100, and what is promised
here for 16 clients. That wants a quiet machine for five minutes.

Every report must have its server's side, whose parts add up. The last line says how
many checks passed and failed. `make measure WHAT=perf-analyzer` brings
perf_analyzer to bin/perf-analyzer first.
"""

import argparse
import csv
import pathlib
import re
import subprocess
import sys
import tempfile

import shoal

PERF_ANALYZER = shoal.ROOT / "bin/perf-analyzer/perf_analyzer"
CLIENTS = range(2, 17, 2)

# What Triton reached, in inferences a second, for 2, 4, ... 16 clients.
SEED = {
    "seed_none": [956, 977, 973, 975, 976, 976, 966, 975],
    "seed_dynamic": [998, 1766, 2518, 3096, 3183, 3181, 3185, 3188],
    "seed_two": [1446, 1926, 2695, 3225, 3380, 3982, 4028, 4134],
}
# The least for 16 clients: 0.97 and 0.95 of what the device can do at the most.
PROMISED = {"seed_dynamic": 3239, "seed_two": 4562}

COLUMNS = [
    "Inferences/Second", "Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input", "Server Compute Infer",
    "Server Compute Output", "Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency",
]

# The seed's own call: requests of two rows.
SEED_CALL = ["-b", "2", "--shape", "input.1:1,32,100", "--percentile=95"]

LEVEL = re.compile(r"^Request (?:concurrency|Rate): ([\d.]+)(?: inference requests per seconds)?$", re.MULTILINE)
PARTS = re.compile(
    r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec"
    r" \+ compute infer (\d+) usec \+ compute output (\d+) usec\)")


class Wrong(Exception):
    """A report that is not as it should be."""


class Unstable(Wrong):
    """No report, because windows differ too much: others use the machine, too."""


class Level:
    """What one report says of one number of clients, or one rate."""

    def __init__(self, load, text):
        self.load = load
        self.text = text
        self.requests = self.number("Request count")
        self.throughput = self.number("Throughput")
        self.p95 = self.number("p95 latency")
        self.client_us = self.number(r"Avg (?:HTTP|gRPC) time")
        self.inferences = self.number("Inference count")
        self.executions = self.number("Execution count")
        self.successes = self.number("Successful request count")
        parts = PARTS.search(text)
        if not parts:
            raise Wrong(f"found no server's side in\n{text}")
        self.server_us, self.overhead, self.queue, *self.compute = map(int, parts.groups())

    def number(self, name):
        found = re.search(rf"^\s*{name}: ([\d.]+)", self.text, re.MULTILINE)
        if not found:
            raise Wrong(f"found no {name!r} in\n{self.text}")
        return float(found[1])

    def check(self, rows, clients):
        def expect(true, sentence):
            if not true:
                raise Wrong(f"{sentence}, in\n{self.text}")

        expect(self.requests > 0, "no request was answered")
        # Each side has its own clock and window. At its edges there are those who wait.
        slack = 4 * clients + 0.05 * self.requests
        expect(abs(self.requests - self.successes) <= slack, "client and server count differently")
        expect(self.inferences == rows * self.successes, f"found other than {rows} inferences for each request")
        # A batch counts when it has run, and its requests when they are answered.
        expect(0 < self.executions <= self.successes + clients, "found more executions than requests, or none")
        expect(self.queue + sum(self.compute) <= self.server_us, "queue and compute take longer than the request")
        # Each part was rounded down by itself.
        expect(0 <= self.server_us - self.overhead - self.queue - sum(self.compute) <= 5, "the parts do not add up")
        expect(self.server_us <= self.client_us * 1.05 + 100, "the server takes longer than its clients wait")


def run(arguments, limit=300):
    """Runs perf_analyzer; returns its exit status and all it printed."""
    try:
        done = subprocess.run([PERF_ANALYZER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
    except subprocess.TimeoutExpired as late:
        raise Wrong(f"perf_analyzer {' '.join(arguments)}: no end after {limit} s\n{(late.stdout or b'').decode()}") from None
    return done.returncode, done.stdout


def measure(model, where, *arguments, rows=2, clients=16, window=300, stability=100_000):
    """The levels that perf_analyzer measures, each of them checked. Windows of which one is that
    many per cent above another are unstable; unless told, none are, since figures do not matter. clients
    is the most that wait at a time."""
    call = ["-m", model, *where, "-p", str(window), "-s", str(stability), "-r", "10", *arguments]
    status, text = run(call)
    if status == 2:
        raise Unstable(f"perf_analyzer {' '.join(call)}: unstable\n{text}")
    if status != 0:
        raise Wrong(f"perf_analyzer {' '.join(call)}: found exit status {status}, expected 0\n{text}")
    starts = [m.start() for m in LEVEL.finditer(text)] + [len(text)]
    levels = [Level(float(LEVEL.match(text[a:])[1]), text[a:b]) for a, b in zip(starts, starts[1:])]
    if not levels:
        raise Wrong(f"perf_analyzer {' '.join(call)}: found no report\n{text}")
    for level in levels:
        level.check(rows, clients)
    return levels


def check_csv(path, first, levels):
    with open(path) as file:
        header, *lines = csv.reader(file)
    if header != [first, *COLUMNS]:
        raise Wrong(f"found the columns {header}, expected {[first, *COLUMNS]}")
    found = sorted((float(line[0]), float(line[1])) for line in lines)
    expected = sorted((level.load, level.throughput) for level in levels)
    if any(abs(a - b) > 0.01 * max(b, 1) for pair in zip(found, expected) for a, b in zip(*pair)) or len(found) != len(expected):
        raise Wrong(f"found {found} in the file, expected {expected}, which was printed")


class Checks:
    """Runs checks and counts them."""

    def __init__(self, server, folder):
        self.http = ["-u", server.http]
        self.grpc = ["-i", "grpc", "-u", server.grpc]
        self.passed = self.failed = 0
        self.folder = folder

    def check(self, name, do):
        try:
            do()
        except Wrong as wrong:
            self.fail(name, wrong)
            return
        self.passed += 1
        print(f"ok      {name}", flush=True)

    def fail(self, name, wrong):
        self.failed += 1
        print(f"FAILED  {name}: {wrong}", flush=True)

    def all_kinds_of_load(self):
        for protocol, where in (("HTTP", self.http), ("gRPC", self.grpc)):
            self.check(f"{protocol}, clients, CSV", lambda: self.clients(where))
            self.check(f"{protocol}, request rate, CSV", lambda: self.rate(where))
            self.check(f"{protocol}, system shared memory", lambda: measure(
                "seed_dynamic", where, *SEED_CALL, "--shared-memory", "system", "--concurrency-range", "8"))
        self.check("HTTP, JSON tensors", lambda: measure(
            "seed_dynamic", self.http, *SEED_CALL, "--input-data", "zero",  # at random there are NaNs among them
            "--input-tensor-format", "json", "--output-tensor-format", "json"))
        self.check("gRPC, asynchronous", lambda: measure("seed_dynamic", self.grpc, *SEED_CALL, "--async", "--concurrency-range", "8"))
        self.check("gRPC, compressed", lambda: measure("seed_dynamic", self.grpc, *SEED_CALL, "--grpc-compression-algorithm", "gzip"))
        self.check("gRPC, stream", lambda: measure(
            "seed_dynamic", self.grpc, *SEED_CALL, "--async", "--streaming", "--concurrency-range", "8"))
        self.check("unknown model", self.unknown)

    def clients(self, where):
        file = self.folder / "clients.csv"
        levels = measure("seed_dynamic", where, *SEED_CALL, "--concurrency-range", "2:16:2", "-f", str(file))
        check_csv(file, "Concurrency", levels)
        if [level.load for level in levels] != list(CLIENTS):
            raise Wrong(f"found the levels {[level.load for level in levels]}, expected {list(CLIENTS)}")
        if levels[-1].executions > levels[-1].successes / 2:
            raise Wrong(f"16 clients share no batches, in\n{levels[-1].text}")

    def rate(self, where):
        file = self.folder / "rate.csv"
        levels = measure("seed_two", where, *SEED_CALL, "--request-rate-range", "100:200:100", "-f", str(file))
        check_csv(file, "Request Rate", levels)

    def unknown(self):
        status, text = run(["-m", "nosuch", *self.http])
        if status != 99 or "Request for unknown model: 'nosuch' is not found" not in text:
            raise Wrong(f"found exit status {status}, expected 99 and the server's message\n{text}")

    def table(self, protocol, where, window):
        print(f"\n{protocol}, requests of 2 rows, infer/s (p95 in ms), beside Triton's on an A100", flush=True)
        print(f"| clients | {' | '.join(map(str, CLIENTS))} |\n|{'---|' * (len(CLIENTS) + 1)}", flush=True)
        ends = []
        for model, seed in SEED.items():
            levels = [self.level(model, where, clients, window) for clients in CLIENTS]
            cells = [f"{level.throughput:,.0f} ({level.p95 / 1000:.1f})" if level else "unstable" for level in levels]
            print(f"| {model} | {' | '.join(cells)} |\n| Triton's | {' | '.join(f'{n:,}' for n in seed)} |", flush=True)
            if model in PROMISED:
                ends.append((model, levels[-1]))
        for model, level in ends:
            self.check(f"{protocol}, {model}, 16 clients: at least {PROMISED[model]:,} infer/s", lambda: promised(level, PROMISED[model]))

    def level(self, model, where, clients, window):
        """One cell of the table. Each is a run of its own: one that is unstable would end all that follow it."""
        try:
            return measure(model, where, *SEED_CALL, "--concurrency-range", str(clients), window=window, stability=20)[0]
        except Unstable:
            return None
        except Wrong as wrong:
            self.fail(f"{model}, {clients} clients", wrong)
            return None


def promised(level, least):
    if level is None:
        raise Wrong("unstable; others use the machine, too")
    if level.throughput < least:
        raise Wrong(f"found {level.throughput:,.0f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="no tables")
    parser.add_argument("--window", type=int, default=2000, metavar="MS", help="length of a measurement for the tables (%(default)s)")
    arguments = parser.parse_args()

    server = shoal.Server(shoal.ROOT / "examples/seed-device", "--allow-client-shm")
    try:
        with tempfile.TemporaryDirectory() as folder:
            checks = Checks(server, pathlib.Path(folder))
            checks.all_kinds_of_load()
        if not arguments.short:
            checks.table("HTTP", checks.http, arguments.window)
            checks.table("gRPC", checks.grpc, arguments.window)
    finally:
        server.stop()
    print(f"{checks.passed} passed, {checks.failed} failed, 0 skipped")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
