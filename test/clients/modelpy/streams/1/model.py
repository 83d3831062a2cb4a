import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Answers as often as a script says, a list of steps: in a thread of its own, or in execute if its first step is "here"."""

    def initialize(self, args):
        self.threads, self.told = [], []

    def execute(self, requests):
        for r in requests:
            script = json.loads(pb_utils.get_input_tensor_by_name(r, "SCRIPT").as_numpy()[0])
            sender = r.get_response_sender()
            if script and script[0] == "here":
                self.play(sender, script[1:])
                continue
            thread = threading.Thread(target=self.play, args=(sender, script))
            thread.start()
            self.threads.append(thread)
        return None

    def play(self, sender, script):
        for step in script:
            what, *rest = step if isinstance(step, list) else [step]
            if what == "send":
                sender.send(self.number(rest[0]))
            elif what == "send last":
                sender.send(self.number(rest[0]), flags=FINAL)
            elif what == "error":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(rest[0])))
            elif what == "error last":
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(rest[0])), flags=FINAL)
            elif what == "end":
                sender.send(flags=FINAL)
            elif what == "sleep":
                time.sleep(rest[0] / 1000)
            elif what == "raise":
                raise RuntimeError(rest[0])
            elif what == "try":  # what is told of a step that cannot be done
                try:
                    self.play(sender, [rest[0]])
                    self.told.append("done")
                except Exception as e:
                    self.told.append(str(e))
            elif what == "tell":  # as an error, which may have any text
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("; ".join(self.told))), flags=FINAL)
                self.told = []
            elif what == "await cancel":
                began = time.monotonic()
                while not sender.is_cancelled() and time.monotonic() - began < rest[0] / 1000:
                    time.sleep(0.005)
                self.told.append("cancelled" if sender.is_cancelled() else "not cancelled")
                sender.send(flags=FINAL)

    def number(self, n):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([n], np.int32))])

    def finalize(self):
        for thread in self.threads:
            thread.join()
