"""Trains the digit classifier and exports it: python train.py

It writes digits.onnx and three.json next to this file. It needs scikit-learn and skl2onnx.
"""

import json
import pathlib

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

here = pathlib.Path(__file__).parent
images, labels = load_digits(return_X_y=True)  # 1,797 images of 8×8 pixels, with values from 0 to 16
images = images.astype(np.float32) / 16
train_x, test_x, train_y, test_y = train_test_split(images, labels, random_state=0)

model = MLPClassifier(hidden_layer_sizes=(64,), max_iter=500, random_state=0).fit(train_x, train_y)
print(f"accuracy on {len(test_y)} unseen images: {model.score(test_x, test_y):.3f}")

onnx = to_onnx(model, train_x[:1], options={"zipmap": False}, initial_types=None, target_opset=17)
(here / "digits.onnx").write_bytes(onnx.SerializeToString())

three = test_x[test_y == 3][0]
(here / "three.json").write_text(json.dumps({"X": [[round(float(p), 4) for p in three]]}) + "\n")
