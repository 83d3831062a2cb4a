"""Cuts the characters out of a line of text."""

import numpy as np
import shoal

SIZE = 8  # the recogniser takes images of 8×8 pixels


@shoal.model(
    inputs={"image": ("FP32", [-1, -1]), "boxes": ("INT64", [-1, 2])},
    outputs={"characters": ("FP32", [-1, SIZE * SIZE])},
)
def crop(image, boxes):
    """Returns each character in the middle of an image of its own, one per row."""
    wide = np.pad(image, ((0, 0), (SIZE, SIZE)))
    starts = SIZE + (boxes.sum(axis=1) - SIZE) // 2
    rows = [wide[:SIZE, start : start + SIZE].reshape(-1) for start in starts]
    return {"characters": np.array(rows, np.float32).reshape(-1, SIZE * SIZE)}
