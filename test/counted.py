"""Runs the tests of a folder with unittest, and counts them in the last line, as .ci/run wants it."""

import argparse
import sys
import unittest


class Result(unittest.TextTestResult):
    """Counts what passed, too. A failed subtest counts by itself."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def discover(folder):
    """The tests of the folder, or those that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-k", metavar="PATTERN", action="append", help="only tests whose names match")
    arguments = parser.parse_args()

    loader = unittest.TestLoader()
    if arguments.k:
        loader.testNamePatterns = [p if "*" in p else f"*{p}*" for p in arguments.k]
    return loader.discover(str(folder))


def run(tests):
    return unittest.TextTestRunner(stream=sys.stdout, resultclass=Result).run(tests)


def report(result, more=0):
    """Prints the counts, with so many more that failed, and returns the exit status."""
    for test, reason in result.skipped:
        print(f"== skipped: {test.id()}: {reason}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses) + more
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not result.testsRun else 0
