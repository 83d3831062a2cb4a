#!/usr/bin/env python3
"""Measures Python models in bin/shoal and in a real tritonserver, with perf_analyzer, in turn.

    python3 test/clients/python_speed.py [--window MS] [--rounds N] [--only WORD] [--keep FILE]

The same model.py files run in both, each server idle while the other is measured, and
who is first changes from round to round:

- identity, with 64 clients: at least 1.5 times Triton's throughput;
- the seed device, which sleeps, with 1 to 32 clients: as it is here, and in Triton with
  max_queue_delay of 0, 0.1, 0.5 and 2 ms. At least as good as the best of these with
  each number of clients, and 1.4 times its default with 2 and with 4. Which is the best is
  looked up once, in a round before the others; these have Triton's default and its best.

Before them a batch of 8 × 12.8 KB goes through a worker that does nothing
(BenchmarkRoundTrip): at most 60 µs in the median. Beside it stands what it takes where both
processes have the same core: a core that falls asleep while the other works is slow to wake.

What is measured is kept in a file, so that a run that was ended goes on where it was; another
window or another bin/shoal begins anew. It prints a table, and last how many promises are kept.
`make measure WHAT=python-speed` brings what it needs first.
"""

import argparse
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import perf_analyzer
import shoal
import triton
import measure  # where shoal.py looks, too

CLIENTS = [1, 2, 4, 6, 8, 16, 32]
DELAYS = [0, 100, 500, 2000]  # microseconds
ROUND_TRIP = 60  # microseconds, at most
IDENTITY, BEST, DEFAULT = 1.5, 1.0, 1.4  # times Triton's throughput, at least


def repository(folder):
    """Triton's models: those of triton/, the seed device once for each delay."""
    shutil.copytree(triton.MODELS, folder, dirs_exist_ok=True)
    seed = folder / "seed_device"
    text = (seed / "config.pbtxt").read_text()
    for delay in DELAYS[1:]:
        other = folder / f"seed_device_{delay}"
        shutil.copytree(seed, other)
        config = text.replace('"seed_device"', f'"seed_device_{delay}"')
        (other / "config.pbtxt").write_text(re.sub(r"dynamic_batching \{.*\}", f"dynamic_batching {{ max_queue_delay_microseconds: {delay} }}", config))


class Screen:
    """Triton's throughput with each delay, once, for one number of clients."""

    def __init__(self, model, clients, rows, delays):
        self.model, self.clients, self.rows, self.delays = model, clients, rows, delays
        self.name = f"{model} {clients} delays"
        self.rounds = []  # each a throughput by place

    def places(self):
        return [f"Triton {delay}" for delay in self.delays]

    def measure(self, servers, window):
        return {place: self.throughput(servers, place, window) for place in measure.turn(self.places(), len(self.rounds))}

    def throughput(self, servers, place, window):
        side, delay = (place + " 0").split()[:2]
        model = self.model if delay == "0" else f"{self.model}_{delay}"
        call = ["-b", str(self.rows), "--input-data", "zero", "--concurrency-range", str(self.clients), "--percentile", "95"]
        level, = perf_analyzer.measure(
            model, ["-i", "grpc", "-u", servers[side].grpc], *call, rows=self.rows, clients=self.clients, window=window)
        return level.throughput

    def best(self):
        return max(self.rounds[0], key=self.rounds[0].get)


class Cell(Screen):
    """One model with a number of clients, here and in Triton, with its default and with its best delay: a throughput for each in each round."""

    def __init__(self, screen):
        super().__init__(screen.model, screen.clients, screen.rows, [0])
        self.name, self.screen = f"{screen.model} {screen.clients}", screen

    def places(self):
        return list(dict.fromkeys(["Shoal", "Triton 0", self.best()]))

    def best(self):
        """Triton's best place."""
        return self.screen.best()

    def middle(self, place):
        return statistics.median(pair[place] for pair in self.rounds)

    def ratio(self, place):
        return [pair["Shoal"] / pair[place] for pair in self.rounds]

    def promises(self):
        """Which place of Triton's is to be reached how many times."""
        if self.model == "identity":
            return [("Triton 0", IDENTITY)]
        promises = [(self.best(), BEST)]
        if self.clients in (2, 4):
            promises.append(("Triton 0", DEFAULT))
        return promises

    def row(self):
        def times(place):
            return "{:.2f} [{:.2f}, {:.2f}]".format(*measure.median(self.ratio(place)))

        figures = " / ".join(f"{self.middle(place):,.0f}" for place in ("Shoal", "Triton 0", self.best()))
        best = self.best()
        return f"{self.model} | {self.clients} | {figures} | {times('Triton 0')} | {times(best)}, {best.split()[1]} µs"


class RoundTrip:
    """The median of BenchmarkRoundTrip in microseconds, as it is and with both processes on one core."""

    def __init__(self):
        self.name, self.rounds = "round trip", []

    def measure(self):
        return {name: self.run(*on) for name, on in (("plain", []), ("one core", ["taskset", "--cpu-list", "0"]))}

    def run(self, *on):
        call = [*on, "go", "test", "-run", "^$", "-bench", "RoundTrip", "-benchtime", "3s", "./internal/engine/python"]
        done = subprocess.run(call, cwd=shoal.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        found = re.search(r"([\d.]+) p50-µs", done.stdout)
        if not found:
            sys.exit(f"{' '.join(call)}: found no p50-µs in\n{done.stdout}")
        return float(found[1])

    def samples(self, name):
        return [one[name] for one in self.rounds]


def fill(cells, log, rounds, window):
    """Measures what is missing: the delays once, and then all cells once before any of them again."""
    screens = [cell.screen for cell in cells]
    if all(screen.rounds for screen in screens) and all(len(cell.rounds) >= rounds for cell in cells):
        return
    with tempfile.TemporaryDirectory(prefix="shoal-speed-") as folder:
        models = pathlib.Path(folder) / "models"
        repository(models)
        servers = {"Triton": triton.Server(models, "--disable-auto-complete-config")}
        ours = shoal.Repository()
        try:
            shutil.copytree(triton.MODELS, ours.path, dirs_exist_ok=True)
            servers["Shoal"] = shoal.Server(ours.path, python=shoal.PYTHON)
            measure.fill(screens, log, 1, lambda cell: cell.measure(servers, window))
            measure.fill(cells, log, rounds, lambda cell: cell.measure(servers, window))
        finally:
            for server in servers.values():
                server.stop()
            ours.remove()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--window", type=int, default=1000, metavar="MS", help="length of a window; each run has three (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(%(default)s)")
    parser.add_argument("--only", default="", metavar="WORD", help="cells that have this in their names, such as 'identity' or 'seed_device 4'")
    parser.add_argument("--keep", type=pathlib.Path, default=shoal.ROOT / "bin/python-speed.jsonl", metavar="FILE", help="where rounds are kept (%(default)s)")
    arguments = parser.parse_args()
    for needed in (shoal.BINARY, perf_analyzer.PERF_ANALYZER, triton.BINARY, shoal.PYTHON):
        if not needed.exists():
            sys.exit(f"found no {needed}: run make measure WHAT=python-speed, which brings it")

    cells = [Cell(Screen("identity", 64, 1, [0]))] + [Cell(Screen("seed_device", clients, 2, DELAYS)) for clients in CLIENTS]
    cells = [cell for cell in cells if (arguments.only + " ") in (cell.name + " ") or arguments.only == ""]
    trips = [RoundTrip()] if arguments.only in "round trip" else []
    log = measure.Log(arguments.keep, measure.under(shoal.BINARY, arguments.window))
    log.read(cells + [cell.screen for cell in cells] + trips)
    try:
        measure.fill(trips, log, arguments.rounds, RoundTrip.measure)
        if cells:
            fill(cells, log, arguments.rounds, arguments.window)
    except perf_analyzer.Wrong as wrong:
        print(f"{wrong}\nwhat was measured is kept in {arguments.keep}; run it again to go on", file=sys.stderr)
        return 1
    print(f"infer/s over gRPC, and Shoal's share of Triton's: {arguments.rounds} rounds, each of three windows of {arguments.window} ms.\n")
    gates = []
    for trip in trips:
        print("A round trip on one core takes {:.1f} µs [{:.1f}, {:.1f}].\n".format(*measure.median(trip.samples("one core"))))
        gates.append(("python-speed: round trip, µs", measure.at_most(ROUND_TRIP), trip.samples("plain")))
    print("| model | clients | Shoal / Triton by default / at its best | of Triton's default | of Triton's best |\n|---|---|---|---|---|")
    for cell in cells:
        print(f"| {cell.row()} |")
        for place, least in cell.promises():
            which = "default" if least != BEST else "best"
            gates.append((f"python-speed: {cell.name}, share of Triton's {which}", measure.at_least(least), cell.ratio(place)))
    print()
    return measure.report(gates)


if __name__ == "__main__":
    sys.exit(main())
