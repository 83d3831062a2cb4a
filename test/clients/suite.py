#!/usr/bin/env python3
"""Runs the tests of this folder with the tritonclient that this Python has.

    VENV/bin/python test/clients/suite.py [-k PATTERN]

The last line says how many passed, failed and were skipped. `make clients` runs
it once for each pinned tritonclient.
"""

import pathlib
import sys

import fixture

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import counted  # noqa: E402


def main():
    tests = counted.discover(pathlib.Path(__file__).parent)
    with fixture.serving() as server:
        result = counted.run(tests)
        if not result.wasSuccessful():
            print(server.text())
    if server.status != 0:
        print(f"The server ended with status {server.status}\n{server.text()}")
    return counted.report(result, more=server.status != 0)


if __name__ == "__main__":
    sys.exit(main())
