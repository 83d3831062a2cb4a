"""numpy, or None if the interpreter does not have it: handlers of MMS and TorchServe run without it."""

import sys

MISSING = ""  # why a model that needs numpy cannot run; "" if it can

try:
    import numpy as np
except ImportError as e:
    np = None
    MISSING = "%s has no numpy (%s): run 'python3 -m venv venv && venv/bin/pip install numpy' next to the model's files, or configure another interpreter" % (sys.executable, e)
