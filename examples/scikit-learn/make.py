"""Trains a small model, and writes a repository with it: python make.py models

Then: shoal serve models. The interpreter that serves it needs scikit-learn, too: an environment in models/iris/venv, or the python3 in the PATH.
"""

import pathlib
import sys

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

flowers = load_iris()
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(flowers.data, flowers.target_names[flowers.target])

file = pathlib.Path(sys.argv[1]) / "iris" / "1" / "model.joblib"
file.parent.mkdir(parents=True, exist_ok=True)
joblib.dump(model, file)
print("%s knows %s by %d features" % (file, ", ".join(model.classes_), model.n_features_in_))
