"""Asks the digit classifier with Shoal's Python package: python3 infer.py [URL]"""

import json
import pathlib
import sys

import numpy
import shoal

image = pathlib.Path(__file__).parent / "../image-classifier/three.json"
pixels = numpy.array(json.loads(image.read_text())["X"], numpy.float32)

model = shoal.load("digits", url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000")
try:
    answer = model.run({"X": pixels}, ["label"], timeout=2)
except shoal.OverloadedError as error:
    sys.exit(f"overloaded: try again after {error.retry_after} s")
print("label", answer["label"].item())
