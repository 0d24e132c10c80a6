"""A device whose graphs are recorded on the CPU: a thread replays the work, and writes and waits as a GPU's stream does."""

import ctypes
import threading
import time

import torch

from kt_core.device.cpu import Own
from kt_core.kernels.relay import answer_from_host

PATIENCE = 20.0  # seconds that a replay waits for an answer


class Recording(Own):
    """What is captured is run again, with the addresses that the CPU was given while it was captured."""

    def __init__(self, words=True):
        super().__init__(0)
        self.words, self.crossing, self.replays, self.captures = words, None, 0, 0
        self.failure = None
        self._live, self._capturing = False, False

    def no_graphs(self):
        return ""

    def words_unusable(self):
        return "" if self.words else "it was told so"

    def capture(self, function, beside=None):
        relay = self.crossing.relay
        asked, add = [], relay.add

        def noted(*arguments):
            asked.append(add(*arguments))
            call(answer_from_host(), asked[-1][2])  # a GPU computes nothing now: here the pages must get right numbers
            return asked[-1]

        relay.add = noted
        self._capturing = True
        result = function().clone()
        self._capturing = False
        self.captures += 1

        def again():
            self.replays += 1
            turns = iter(asked)
            stand_in = type("Replayed", (), {"add": lambda self, *arguments: next(turns)})()

            def stream():
                self.crossing.relay, self._live = stand_in, True
                try:
                    with torch.inference_mode():
                        result.copy_(function())
                except Exception as e:
                    self.failure = e
                finally:
                    self.crossing.relay, self._live = None, False

            thread = threading.Thread(target=stream)
            thread.start()
            if not self.words:  # nobody serves: the driver's threads have done it
                thread.join()
            self.thread = thread

        return type("Graph", (), {"replay": lambda self: again()})(), Joined(self, result)

    def write(self, word, value):
        if not self._capturing:
            ctypes.c_uint32.from_address(word).value = value

    def wait(self, word, value):
        end = time.monotonic() + PATIENCE
        while not self._capturing and ctypes.c_uint32.from_address(word).value < value:
            assert time.monotonic() < end, "nobody answered"

    def call(self, function, argument):
        if self._live:
            call(function, argument)


def call(function, argument):
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(argument)


class Joined:
    """The result of a graph: reading it waits for the replay."""

    def __init__(self, device, result):
        self.device, self.result = device, result

    def __getitem__(self, rows):
        self.device.thread.join()
        if self.device.failure:
            raise self.device.failure
        return self.result[rows].clone()
