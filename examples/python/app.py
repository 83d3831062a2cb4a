"""Two models in one file: shoal serve examples/python/app.py --reload

Python needs numpy. The environment in ./venv or ./.venv next to this file is used if it exists, otherwise python3 in the PATH.
"""

import numpy as np
import shoal


@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32)
def total(x):
    # x has the rows of all requests in the batch, and y must have as many.
    if not np.isfinite(x).all():
        raise shoal.BadInput("x has a value that is not finite")
    return {"y": x.sum(axis=1)}


@shoal.model(inputs={"text": ("STRING", [-1, 1])}, outputs={"words": ("INT64", [-1, 1]), "seen": ("INT64", [-1, 1])}, max_batch=8, name="count_words")
class CountWords:
    def __init__(self):
        # Runs once per instance: load weights here.
        self.seen = 0

    def __call__(self, text):
        words = np.array([[len(t.split()) for t in row] for row in text])
        self.seen += len(text)
        return {"words": words, "seen": np.full((len(text), 1), self.seen)}
