#!/usr/bin/env python3
"""Runs the tests of this folder with the tritonclient that this Python has.

    VENV/bin/python test/clients/suite.py [-k PATTERN]

The last line says how many passed, failed and were skipped. `make clients` runs
it once for each pinned tritonclient.
"""

import argparse
import pathlib
import sys
import unittest

import fixture


class Result(unittest.TextTestResult):
    """Counts what passed, too. A failed subtest counts by itself."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-k", metavar="PATTERN", action="append", help="only tests whose names match")
    arguments = parser.parse_args()

    loader = unittest.TestLoader()
    if arguments.k:
        loader.testNamePatterns = [p if "*" in p else f"*{p}*" for p in arguments.k]
    tests = loader.discover(str(pathlib.Path(__file__).parent))
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result)
    with fixture.serving() as server:
        result = runner.run(tests)
        if not result.wasSuccessful():
            print(server.text())
    for test, reason in result.skipped:
        print(f"== skipped: {test.id()}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    if server.status != 0:
        print(f"The server ended with status {server.status}\n{server.text()}")
        failed += 1
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
