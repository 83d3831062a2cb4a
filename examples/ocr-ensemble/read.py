"""Reads a line of digits with one request: python3 read.py page.pgm [URL]"""

import json
import sys
import urllib.request


def load(path):
    """Returns the size and the pixels, from 0 to 1, of a PGM image in its text form."""
    words = open(path).read().split()
    width, height, white = map(int, words[1:4])
    return [height, width], [int(word) / white for word in words[4:]]


def read(path, url):
    shape, pixels = load(path)
    body = {"inputs": [{"name": "IMAGE", "datatype": "FP32", "shape": shape, "data": pixels}]}
    with urllib.request.urlopen(f"{url}/v2/models/read/infer", json.dumps(body).encode()) as answer:
        return json.load(answer)["outputs"][0]["data"][0]


if __name__ == "__main__":
    print(read(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8000"))
