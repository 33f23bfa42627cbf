"""Results survive whatever ends the program."""

import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import store  # noqa: E402


def record(i):
    return {"kind": "sample", "key": f"k{i}", "text": "zwölf\n\"x\""}


class StoreTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "samples.jsonl")

    def filled(self, n):
        results = store.Store(self.folder.name)
        for i in range(n):
            results.add(record(i))
        results.close()

    def test_what_is_added_is_there_again(self):
        self.filled(3)
        results = store.Store(self.folder.name)
        self.addCleanup(results.close)
        self.assertEqual(results.records, [record(i) for i in range(3)])
        self.assertEqual(results.done, {"k0", "k1", "k2"})

    def test_a_line_cut_anywhere_costs_only_itself(self):
        self.filled(3)
        with open(self.path, "rb") as file:
            whole = file.read()
        second_end = len(b"".join(whole.splitlines(keepends=True)[:2]))
        for size in range(second_end, len(whole)):
            with open(self.path, "wb") as file:
                file.write(whole[:size])
            results = store.Store(self.folder.name)
            self.assertEqual(results.done, {"k0", "k1"}, size)
            results.add(record(2))
            results.close()
            with open(self.path, "rb") as file:
                self.assertEqual(file.read(), whole, size)

    def test_a_broken_line_in_the_middle_is_named(self):
        self.filled(1)
        with open(self.path, "ab") as file:
            file.write(b"not json\n")
        with self.assertRaisesRegex(ValueError, "line 2: not JSON"):
            store.Store(self.folder.name)

    def test_two_runs_at_a_time_are_refused(self):
        results = store.Store(self.folder.name)
        self.addCleanup(results.close)
        with self.assertRaisesRegex(ValueError, "another run"):
            store.Store(self.folder.name)


if __name__ == "__main__":
    unittest.main()
