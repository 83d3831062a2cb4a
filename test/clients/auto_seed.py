#!/usr/bin/env python3
"""Measures the seed device, left as it is, beside the same with each delay, with Triton's perf_analyzer.

    python3 test/clients/auto_seed.py [--window MS] [--rounds N] [--clients N ...] [--keep FILE]

Untouched are seed_auto and seed_auto_two of examples/seed-device, measured by their
server before anybody asks for them. Beside them a second server runs the same device
with --batching=triton and delays of 0, 0.1, 0.5 and 2 ms, with one instance and with
two. Clients send requests of two rows over gRPC. A round is one run of each, right
after one another, and who is first changes from round to round. What is compared is
the ratio within a round, and then the median of these.

It prints tables for docs/lab/measurements.md, and last how many figures are as promised.
Runs are kept in a file, so that it goes on where it was ended; another window or
another bin/shoal begins anew. `make measure WHAT=auto-seed` brings what it needs first. That wants
a quiet machine for ten minutes.
"""

import argparse
import pathlib
import re
import statistics
import sys
import time

import perf_analyzer
import shoal
import measure  # where shoal.py looks, too

CLIENTS = [2, 4, 6, 8, 16]
DELAYS = [0, 100, 500, 2000]  # microseconds
EXAMPLES = shoal.ROOT / "examples/seed-device"

# By the number of instances: what is promised of the untouched model, infer/s by clients.
PROMISED = {1: {2: 1500, 4: 2750, 6: 2900, 8: 3240, 16: 3270}, 2: {2: 1500, 4: 2750, 6: 2900, 8: 3240, 16: 4650}}
UNTOUCHED = {1: "seed_auto", 2: "seed_auto_two"}
OF_BEST = 0.98  # the least of the best delay, in every cell


class Servers:
    """One server with the models left as they are, and one with delays."""

    def __init__(self):
        self._repositories = []
        self._servers = []
        try:
            self.untouched = self._start({name: config(name) for name in UNTOUCHED.values()})
            self.delayed = self._start({
                delayed(instances, delay): with_delay(name, delay) for instances, name in UNTOUCHED.items() for delay in DELAYS
            }, "--batching=triton")
            self._await_measured()
        except BaseException:
            self.stop()
            raise

    def _start(self, models, *flags):
        repository = shoal.Repository()
        self._repositories.append(repository)
        for name, text in models.items():
            repository.add(name, text)
        server = shoal.Server(repository.path, *flags)
        self._servers.append(server)
        return server

    def _await_measured(self):
        """Waits until the server knows all that it finds out by itself."""
        patience = time.monotonic() + 60
        for name in UNTOUCHED.values():
            while f'msg="model measured" model={name} ' not in self.untouched.text():
                if time.monotonic() > patience:
                    raise RuntimeError(f"{name} is not measured\n{self.untouched.text()}")
                time.sleep(0.05)

    def stop(self):
        for server in self._servers:
            server.stop()
        for repository in self._repositories:
            repository.remove()


def config(name):
    return (EXAMPLES / name / "config.pbtxt").read_text()


def delayed(instances, delay):
    return f"seed_{instances}_delay_{delay}"


def with_delay(name, delay):
    """The untouched model's configuration, with a delay in it."""
    text, changed = re.subn(r"dynamic_batching \{ \}", f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}", config(name))
    text, named = re.subn(r'^name: .*$', "", text, flags=re.MULTILINE)
    if (changed, named) != (1, 1):
        sys.exit(f"found {changed} times dynamic_batching {{ }} and {named} names in {name}'s configuration, expected one of each")
    return text


class Cell:
    """One number of clients of one number of instances, and its rounds: infer/s of each way, "auto" or a delay."""

    def __init__(self, instances, clients):
        self.instances, self.clients = instances, clients
        self.name = f"{instances} instances {clients} clients"
        self.rounds = []

    def measure(self, servers, window):
        ways = ["auto", *map(str, DELAYS)]
        return {way: self.run(servers, way, window) for way in measure.turn(ways, len(self.rounds))}

    def run(self, servers, way, window):
        server, model = (servers.untouched, UNTOUCHED[self.instances]) if way == "auto" else (servers.delayed, delayed(self.instances, way))
        level, = perf_analyzer.measure(
            model, ["-i", "grpc", "-u", server.grpc], *perf_analyzer.SEED_CALL, "--concurrency-range", str(self.clients), clients=self.clients, window=window)
        return level.throughput

    def middle(self, way):
        return statistics.median(of[way] for of in self.rounds)

    def best(self):
        """The delay with the most, and untouched as a share of it, round by round."""
        delay = max(map(str, DELAYS), key=self.middle)
        return delay, [of["auto"] / of[delay] for of in self.rounds]

    def row(self):
        promised = PROMISED[self.instances].get(self.clients)  # none for a number that was asked for by hand
        return " | ".join([
            str(self.clients), f"{self.middle('auto'):,.0f}", f"{promised:,}" if promised else "", *(f"{self.middle(str(delay)):,.0f}" for delay in DELAYS),
            "{:.3f} [{:.3f}, {:.3f}]".format(*measure.median(self.best()[1])),
        ])

    def gates(self):
        promised = PROMISED[self.instances].get(self.clients)
        if promised:
            yield f"auto-seed: {self.name}, infer/s", measure.at_least(promised), [of["auto"] for of in self.rounds]
        yield f"auto-seed: {self.name}, share of the best delay", measure.at_least(OF_BEST), self.best()[1]


def fill(cells, log, rounds, window):
    """Measures what is missing: all cells once before any of them again."""
    if all(len(cell.rounds) >= rounds for cell in cells):
        return
    servers = Servers()
    try:
        measure.fill(cells, log, rounds, lambda cell: cell.measure(servers, window))
    finally:
        servers.stop()


def table(cells, rounds, window):
    print(f"Infer/s, medians of {rounds} rounds, each run of three windows of {window} ms.\n")
    print(f"| clients | untouched | promised | {' | '.join(f'{delay / 1000:g} ms' for delay in DELAYS)} | untouched, share of the best |")
    print("|---|---|---|---|---|---|---|---|")
    for instances in UNTOUCHED:
        print(f"| **{'one instance' if instances == 1 else 'up to two'}** | | | | | | | |")
        for cell in cells:
            if cell.instances == instances:
                print(f"| {cell.row()} |")
    print()


# Where both do the same, half of the medians are below 1 by chance: by 1 % at the most, with what runs of one setting differ by.
OF_ONE = 0.99


def never_below_one(cells):
    """Two instances, held against one of the same round."""
    by = {(cell.instances, cell.clients): cell for cell in cells}
    for (instances, clients), cell in by.items():
        if instances == 2:
            shares = [two["auto"] / one["auto"] for two, one in zip(cell.rounds, by[1, clients].rounds)]
            yield f"auto-seed: {cell.name}, share of one instance", measure.at_least(OF_ONE), shares


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, default=450, metavar="MS", help="length of a window; each run has three (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="of runs for each cell (%(default)s)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="(%(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, default=shoal.ROOT / "bin/auto-seed.jsonl", metavar="FILE", help="where rounds are kept (%(default)s)")
    arguments = parser.parse_args()

    for needed in (shoal.BINARY, perf_analyzer.PERF_ANALYZER):
        if not needed.exists():
            sys.exit(f"found no {needed}: run make measure WHAT=auto-seed, which brings it")
    cells = [Cell(instances, clients) for instances in UNTOUCHED for clients in arguments.clients]
    log = measure.Log(arguments.keep, measure.under(shoal.BINARY, arguments.window))
    log.read(cells)
    try:
        fill(cells, log, arguments.rounds, arguments.window)
    except perf_analyzer.Wrong as wrong:
        print(f"{wrong}\nwhat was measured is kept in {arguments.keep}; run it again to go on", file=sys.stderr)
        return 1
    table(cells, arguments.rounds, arguments.window)
    return measure.report([gate for cell in cells for gate in cell.gates()] + list(never_below_one(cells)))


if __name__ == "__main__":
    sys.exit(main())
