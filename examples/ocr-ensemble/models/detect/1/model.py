"""Finds the characters of a line of text."""

import numpy as np
import shoal


@shoal.model(inputs={"image": ("FP32", [-1, -1])}, outputs={"boxes": ("INT64", [-1, 2])})
def detect(image):
    """Returns the first column of each run of columns that have ink, and the one behind it."""
    ink = np.concatenate([[False], (image > 0.2).any(axis=0), [False]])
    return {"boxes": np.flatnonzero(ink[1:] != ink[:-1]).reshape(-1, 2)}
