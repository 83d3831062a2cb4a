"""Two models in one file: shoal serve examples/python/app.py --reload

Python needs numpy. An environment in ./venv or ./.venv beside this file is used if there is one, and else the python3 in the PATH.
"""

import numpy as np
import shoal


@shoal.model(inputs={"x": ("FP32", [-1, 3])}, outputs={"y": ("FP32", [-1])}, max_batch=32)
def total(x):
    # x has the rows of all requests that run together, and y gets as many.
    if not np.isfinite(x).all():
        raise shoal.BadInput("x has a number that is none")
    return {"y": x.sum(axis=1)}


@shoal.model(inputs={"text": ("STRING", [-1, 1])}, outputs={"words": ("INT64", [-1, 1]), "seen": ("INT64", [-1, 1])}, max_batch=8, name="count_words")
class CountWords:
    def __init__(self):
        # Once for each instance: weights are loaded here.
        self.seen = 0

    def __call__(self, text):
        words = np.array([[len(t.split()) for t in row] for row in text])
        self.seen += len(text)
        return {"words": words, "seen": np.full((len(text), 1), self.seen)}
