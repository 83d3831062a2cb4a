"""Decodes pictures for the classifier."""

import io

import numpy as np
import shoal
from PIL import Image

SIZE = 8  # the classifier takes pictures of 8×8 pixels


@shoal.model(inputs={"jpeg": ("STRING", [-1, 1])}, outputs={"pixels": ("FP32", [-1, SIZE * SIZE])}, max_batch=64)
def prepare(jpeg):
    """Returns each picture in gray, small, and from 0 for black to 1 for white, one per row."""
    return {"pixels": np.stack([pixels(data) for data in jpeg.ravel()])}


def pixels(data):
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
            small = picture.convert("L").resize((SIZE, SIZE), Image.Resampling.BOX)
    except OSError as error:
        raise shoal.BadInput(f"the input is not a JPEG: {error}") from None
    return np.asarray(small, np.float32).ravel() / 255
