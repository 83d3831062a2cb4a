"""The harness behind the figures that Shoal promises, for what is measured from Python.

It has the same rules as the Go package beside it, and the same verdicts: testdata/verdicts.json
holds cases that both pass (`python3 measure.py testdata/verdicts.json`). A figure has at least
MIN_SAMPLES samples, taken in interleaved rounds and kept in a file of JSON lines. Its median
decides; the 95 % interval stands beside it and decides nothing. Misses that are known are
listed in known-misses.json: a new miss fails, and a known one that is met again says so.
"""

import hashlib
import json
import math
import pathlib
import statistics
import sys
import time

MIN_SAMPLES = 7
GROWTH, SLACK = 1.25, 0.05  # a known miss may grow by a quarter of itself and by 5 % of the bound
KNOWN = pathlib.Path(__file__).resolve().parent / "known-misses.json"


def median(values):
    """The median of values, and its 95 % interval by rank."""
    v = sorted(values)
    out = _outside(len(v))
    return statistics.median(v), v[out], v[len(v) - 1 - out]


def _outside(n):
    """How many of n sorted values may be left out at either end so that the rest hold the median with 95 %."""
    below = 0
    for k in range(n):
        below += math.comb(n, k)
        if below > 0.025 * 2**n:
            return max(0, k - 1)
    return 0


class Bound:
    """What a figure must keep to, both ends included. None promises nothing."""

    def __init__(self, low=None, high=None):
        self.low = -math.inf if low is None else low
        self.high = math.inf if high is None else high

    def miss(self, value):
        """By how much a value misses the bound, as a share of the end that it misses; 0 if it keeps to it."""
        if value < self.low:
            return (self.low - value) / (abs(self.low) or 1)
        if value > self.high:
            return (value - self.high) / (abs(self.high) or 1)
        return 0.0

    def __str__(self):
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{self.low:.4g} to {self.high:.4g}"
        return f"at least {self.low:.4g}" if math.isfinite(self.low) else f"at most {self.high:.4g}"


def at_least(low):
    return Bound(low=low)


def at_most(high):
    return Bound(high=high)


class Verdict:
    """What came of one gate: a figure, and the bound that it must keep to."""

    def __init__(self, gate, bound, samples):
        if len(samples) < MIN_SAMPLES:
            raise ValueError(f"{gate}: {len(samples)} samples, want at least {MIN_SAMPLES}")
        for i, value in enumerate(samples):
            if not math.isfinite(value):
                raise ValueError(f"{gate}: sample {i + 1} is {value}")
        self.gate, self.bound = gate, bound
        self.median, self.low, self.high = median(samples)

    @property
    def met(self):
        return self.bound.miss(self.median) == 0

    @property
    def only_interval(self):
        """Whether the interval reaches the bound although the median does not. Such a figure is missed."""
        return not self.met and self.high >= self.bound.low and self.low <= self.bound.high

    @property
    def outcome(self):
        return "met" if self.met else f"missed by {100 * self.bound.miss(self.median):.1f} %"

    def __str__(self):
        return f"{self.gate}: {self.median:.4g} [{self.low:.4g}, {self.high:.4g}], want {self.bound}: {self.outcome}"


def held(verdict, known):
    """Compares a verdict with the list of known misses: whether it does not fail, and what is to be said of it."""
    listed = next((k for k in known if k["gate"] == verdict.gate), None)
    if listed is None:
        return verdict.met, str(verdict)
    if verdict.met:
        return True, f"{verdict} again: remove it from known-misses.json"
    before = verdict.bound.miss(listed["figure"])
    if verdict.bound.miss(verdict.median) > GROWTH * before + SLACK:
        return False, f"{verdict}, and by {100 * before:.1f} % only on {listed['date']}"
    return True, f"{verdict}; known since {listed['date']} ({listed['reason']})"


def report(gates):
    """Judges gates, each a name, a bound and its samples, and prints a sentence each. Returns the exit status.

    A gate that cannot be judged fails, and so does a list without gates.
    """
    known = json.loads(KNOWN.read_text())
    checks = []
    for gate, bound, samples in gates:
        try:
            checks.append(held(Verdict(gate, bound, samples), known))
        except ValueError as err:
            checks.append((False, str(err)))
    return conclude(checks)


def conclude(checks):
    """Prints checks, each whether it is good and a sentence, and how many are. Returns the exit status."""
    checks = list(checks) or [(False, "nothing was checked")]
    for good, sentence in checks:
        print(f"{'ok    ' if good else 'FAILED'}  {sentence}")
    failed = sum(not good for good, _ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def under(binary, *settings):
    """What samples are measured under: the program, and settings such as the length of a window."""
    return " ".join([hashlib.sha256(binary.read_bytes()).hexdigest()[:12], *map(str, settings)])


class Log:
    """The rounds of all cells, a line of JSON each, with what they were measured under."""

    def __init__(self, path, under):
        self._path, self._under = path, under

    def read(self, cells):
        """Gives each cell the rounds that were measured before. A last line that was cut off is left out."""
        by_name = {cell.name: cell for cell in cells}
        text = self._path.read_text() if self._path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._path.write_text(whole)
        for line in whole.splitlines():
            kept = json.loads(line)
            if kept["under"] == self._under and kept["cell"] in by_name:
                by_name[kept["cell"]].rounds.append(kept["pair"])

    def add(self, cell, one):
        with open(self._path, "a") as file:
            file.write(json.dumps({"under": self._under, "cell": cell.name, "pair": one}) + "\n")
        cell.rounds.append(one)


def turn(sides, number):
    """The sides in the order of a round: each round begins with another one."""
    sides = list(sides)
    return sides[number % len(sides):] + sides[: number % len(sides)]


def fill(cells, log, rounds, measure):
    """Measures the rounds that are missing: all cells once before any of them again."""
    while missing := [cell for cell in cells if len(cell.rounds) < rounds]:
        fewest = min(len(cell.rounds) for cell in missing)
        for cell in [cell for cell in missing if len(cell.rounds) == fewest]:
            began = time.monotonic()
            log.add(cell, measure(cell))
            print(f"round {len(cell.rounds)} of {rounds} in {time.monotonic() - began:.1f} s: {cell.name}", file=sys.stderr, flush=True)


def _check(path):
    """Prints what is wrong with the verdicts of a file of cases."""
    wrong = 0
    for case in json.loads(path.read_text()):
        known = case.get("known", [])
        try:
            verdict = Verdict("gate", Bound(case.get("low"), case.get("high")), case["samples"])
            good, sentence = held(verdict, known)
            got = {"text": str(verdict), "fails": not good, "only_interval": verdict.only_interval, "says": sentence if known else ""}
        except ValueError as err:
            got = {"error": str(err)}
        if got != case["want"]:
            wrong += 1
            print(f"{case['name']}: {got}, want {case['want']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_check(pathlib.Path(sys.argv[1])))
