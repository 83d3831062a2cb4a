import faulthandler

CONNECTION, SIDE = 3, 5  # descriptor 4 is this file

faulthandler.enable()

import shoal_worker

shoal_worker.main(CONNECTION, SIDE)
