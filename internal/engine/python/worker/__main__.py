import faulthandler
import sys

CONNECTION, SIDE = 3, 5  # descriptor 4 is this file

faulthandler.enable()
try:
    import numpy
except ImportError as e:
    import socket

    import shoal_wire as wire

    message = "%s has no numpy (%s): install it with %s -m pip install numpy, or name another interpreter" % (sys.executable, e, sys.executable)
    socket.socket(fileno=CONNECTION).send(wire.FRAME.pack(wire.FAILED, 0, 0, 0, 0, 0) + wire.text(message))
    sys.exit(1)

import shoal_worker

shoal_worker.main(CONNECTION, SIDE)
