"""Results as they come: one line of JSON each, appended and synced before the next step, so that whatever ends the
program, at whatever moment, costs only what was under way."""

import fcntl
import json
import os
import threading


class Store:
    """The file samples.jsonl of a folder. One process at a time; add() from any thread."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "samples.jsonl")
        self.lock = threading.Lock()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.fd)
            raise ValueError(f"{self.path}: another run writes it; wait for it, or choose another --out") from None
        self.records = read(self.path, cut=self.fd)
        self.done = {record["key"] for record in self.records if record["kind"] == "sample"}
        folder_fd = os.open(folder, os.O_RDONLY)
        os.fsync(folder_fd)  # the file's name, too
        os.close(folder_fd)

    def add(self, record):
        line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
        with self.lock:
            while line:
                line = line[os.write(self.fd, line):]
            os.fsync(self.fd)
            self.records.append(record)
            if record["kind"] == "sample":
                self.done.add(record["key"])

    def close(self):
        os.close(self.fd)


def read(path, cut=None):
    """The records of a file. A last line without its end was being written when the program was killed: it is left out,
    and cut off the file whose descriptor is `cut`. ValueError names a line that is broken otherwise."""
    with open(path, "rb") as file:
        data = file.read()
    whole = data.rfind(b"\n") + 1
    if cut is not None and whole < len(data):
        os.ftruncate(cut, whole)
    records = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise ValueError(f"{path}, line {number}: not JSON; the file was changed by something else") from None
    return records
