"""Joins the recognised characters to a text."""

import numpy as np
import shoal


@shoal.model(inputs={"labels": ("INT64", [-1, 1])}, outputs={"text": ("STRING", [1])})
def spell(labels):
    return {"text": np.array(["".join(map(str, labels.ravel()))], object)}
