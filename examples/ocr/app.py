"""The first model of the OCR example: finds the characters in a line of text."""

import numpy as np
import shoal

MOST = 32  # characters of a line


@shoal.model(inputs={"image": ("FP32", [-1, -1])}, outputs={"boxes": ("INT64", [-1, 2])})
def detect(image):
    """Returns the first and last column of each run of columns that have ink."""
    ink = np.concatenate([[False], (image > 0.2).any(axis=0), [False]])
    edges = np.flatnonzero(ink[1:] != ink[:-1])
    return {"boxes": edges.reshape(-1, 2)[:MOST]}
