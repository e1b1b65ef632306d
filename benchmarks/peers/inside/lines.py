"""Requests as lines on standard input, answers as lines on standard output.

The form is that of ``octavo.bench.compare.lines_target``. What libraries print goes to standard error.
"""

import json
import os
import queue
import sys
import threading


class Lines:
    """The pipes of this process."""

    def __init__(self):
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # from here on nothing else gets into the answers
        self._inbox = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def say(self, **line):
        """Write a line."""
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()

    def take(self, wait):
        """The requests that have come; waits for one if asked to. None is the end."""
        found = []
        while (wait and not found) or not self._inbox.empty():
            line = self._inbox.get()
            if line is None:
                return None
            found.append(json.loads(line))
        return found

    def answer_texts(self, asked):
        """Say that texts are not taken; whether this was one."""
        if isinstance(asked["prompt"], list) and asked["prompt"] and isinstance(asked["prompt"][0], int):
            return False
        self.say(id=asked["id"], error="this driver takes token ids only")
        return True

    def _read(self):
        for line in sys.stdin:
            self._inbox.put(line)
        self._inbox.put(None)
