"""numpy, or None if the interpreter does not have it: handlers of MMS and TorchServe run without it."""

import sys

MISSING = ""  # why a model that needs numpy cannot run; "" if it can

try:
    import numpy as np
except ImportError as e:
    np = None
    MISSING = "%s has no numpy (%s): install it with %s -m pip install numpy, or configure another interpreter" % (sys.executable, e, sys.executable)
