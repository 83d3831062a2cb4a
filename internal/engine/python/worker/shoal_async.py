"""Runs the async methods of a model."""

import asyncio
import sys
import threading
import traceback


class EventLoop:
    """An event loop in a thread of its own. It runs as long as the process, so that what the model creates in one batch, such as a session, works in
    the next."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.task = None  # that of wait, which blocks until it has ended: a loop keeps no reference to its tasks
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        asyncio.set_event_loop(self.loop)
        while not self.loop.is_closed():
            try:
                self.loop.run_forever()  # until a task of the model stops it
            except BaseException:  # SystemExit of a task that nothing awaits
                traceback.print_exc(file=sys.stderr)

    def create_task(self, coroutine):
        self.task = self.loop.create_task(coroutine)
        self.task.add_done_callback(self.forget)

    def forget(self, task):
        if self.task is task:  # the next one may have begun
            self.task = None

    def wait(self, awaitable):
        """Returns the value of an awaitable and None, or None and its exception."""
        outcome, ended = [None, None], threading.Event()
        self.loop.call_soon_threadsafe(self.create_task, self.settle(awaitable, outcome, ended))
        del awaitable  # it has the inputs, which the model must not seem to keep
        ended.wait()
        return outcome

    async def settle(self, awaitable, outcome, ended):
        try:
            outcome[0] = await awaitable
        except BaseException as e:  # SystemExit, too: it would end the loop
            outcome[1] = e
        del awaitable, outcome  # the exception refers to this frame
        # When the callback runs, the loop has no reference to the task any more, nor to the inputs.
        asyncio.current_task().add_done_callback(lambda _: self.loop.call_soon(ended.set))
