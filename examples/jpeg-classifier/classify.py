"""Classifies a picture with one request: python3 classify.py three.jpg [URL]"""

import sys

import numpy as np
import shoal


def classify(path, url):
    with open(path, "rb") as file:
        return shoal.load("classify", url=url).forward(np.array([[file.read()]], object))[0, 0]


if __name__ == "__main__":
    print(classify(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8000"))
