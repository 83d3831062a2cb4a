"""Reads a line of digits with two models: python3 read.py page.pgm [URL]

The client calls the detector once, cuts the characters out, and sends them to the classifier as
concurrent requests, which Shoal computes in a few batches.
"""

import asyncio
import sys

import numpy as np
import shoal

SIZE = 8  # the classifier takes images of 8×8 pixels


def load(path):
    """Reads a PGM image in its text form, with values from 0 to 1."""
    words = open(path).read().split()
    width, height, white = map(int, words[1:4])
    return np.array(words[4:], np.float32).reshape(height, width) / white


def cut(image, first, end):
    """The character between two columns, in the middle of an image of its own."""
    start = max(0, (first + end - SIZE) // 2)
    return image[:, start : start + SIZE].reshape(1, SIZE * SIZE)


async def read(path, url):
    image = load(path)
    boxes = shoal.load("detect", url=url).forward(image)
    digits = shoal.load("digits", url=url)
    calls = (digits.run_async({"X": cut(image, *box)}, ["label"]) for box in boxes)
    return "".join(str(answer["label"].item()) for answer in await asyncio.gather(*calls))


if __name__ == "__main__":
    print(asyncio.run(read(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8000")))
