#!/usr/bin/env python3
"""Tests the package in python/src with bin/shoal.

    bin/worker/bin/python3 python/tests/suite.py [-k PATTERN]

It needs `make build numpy`, and `make onnxruntime` for some. The last line counts the tests.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python/src"), str(ROOT / "test")]
import counted  # noqa: E402
import serving  # noqa: E402

if __name__ == "__main__":
    with serving.runtime():
        sys.exit(counted.report(counted.run(counted.discover(pathlib.Path(__file__).parent))))
