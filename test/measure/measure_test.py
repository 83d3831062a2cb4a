"""Tests of the part of measure.py that testdata/verdicts.json does not have."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import measure


class Cell:
    def __init__(self, name):
        self.name, self.rounds = name, []


class Harness(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "log.jsonl"

    def fill(self, cells, log, rounds):
        order = []
        with contextlib.redirect_stderr(io.StringIO()):
            measure.fill(cells, log, rounds, lambda cell: order.append(cell.name) or {"round": len(cell.rounds)})
        return order

    def test_rounds_are_kept_for_the_same_program(self):
        cells = [Cell("a"), Cell("b")]
        self.assertEqual(self.fill(cells, measure.Log(self.file, "one"), 2), ["a", "b", "a", "b"])
        again, other = [Cell("a"), Cell("b"), Cell("c")], [Cell("a")]
        measure.Log(self.file, "one").read(again)
        measure.Log(self.file, "another").read(other)
        self.assertEqual([len(cell.rounds) for cell in again + other], [2, 2, 0, 0])
        self.assertEqual(self.fill(again, measure.Log(self.file, "one"), 3), ["c", "c", "a", "b", "c"])

    def test_a_line_that_was_cut_off_is_measured_again(self):
        cell = Cell("a")
        self.fill([cell], measure.Log(self.file, "one"), 2)
        self.file.write_text(self.file.read_text()[:-3])
        cell = Cell("a")
        log = measure.Log(self.file, "one")
        log.read([cell])
        self.assertEqual(len(cell.rounds), 1)
        log.add(cell, {})
        self.assertEqual(len([json.loads(line) for line in self.file.read_text().splitlines()]), 2)

    def test_each_round_begins_with_another_side(self):
        self.assertEqual([measure.turn("abc", n) for n in range(4)], [list("abc"), list("bca"), list("cab"), list("abc")])

    def test_what_cannot_be_judged_fails(self):
        def status(*gates):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                code = measure.report(gates)
            return code, out.getvalue().splitlines()[-1]

        at_least_one = measure.at_least(1)
        self.assertEqual(status(), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertEqual(status(("a", at_least_one, [1] * 7)), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertEqual(status(("a", at_least_one, [1] * 6)), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertEqual(status(("a", at_least_one, [1] * 7), ("b", at_least_one, [0.9] * 6 + [1.1])), (1, "1 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
