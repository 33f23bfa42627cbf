"""A grid is carried out once, whatever interrupts it."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import word_tokens  # noqa: E402
from lab import cells, grid, methods, runner, store, tables, texts  # noqa: E402
from lab import sample as sample_lib  # noqa: E402

TEXTS = texts.Texts(HERE.parents[1] / "models/needle-14m")


def the_grid(samples=5):
    used = tuple(map(methods.parse, ("full", "snapkv", "rocketkv:window=16")))
    return grid.Grid((grid.Part(("niah_single_1", "turns_needles"), (1024,), used, (64, 128), samples),), seed=3)


def right(sample, method, budget):
    return [runner.Reply(" ".join(turn.refs), facts()) for turn in sample.turns]


def facts():
    return dict(prompt_tokens=10, cached_tokens=0, completion_tokens=3, applied="x", off="", kept_tokens=5.0,
                read_tokens=0, kv_bytes_full=100, kv_bytes_kept=50, wire_bytes=50, prefill_seconds=0.1,
                total_seconds=0.2)


class Runner(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.samples = runner.Samples(TEXTS, word_tokens.count, 3)

    def run_grid(self, ask, jobs=None, parallel=4, step=lambda failed: None):
        results = store.Store(self.folder.name)
        try:
            return runner.run(jobs or the_grid().jobs(), self.samples, ask, results, parallel, step), results.records
        finally:
            results.close()

    def test_every_sample_is_asked_once_and_the_second_run_asks_nothing(self):
        jobs = list(the_grid().jobs())
        self.assertEqual(len(jobs), 2 * 5 * (1 + 2 * 2))  # `full` has no budget
        asked, steps = [], []
        failures, records = self.run_grid(lambda *a: asked.append(a) or right(*a), step=steps.append)
        self.assertEqual((failures, len(asked), len(steps)), ([], len(jobs), len(jobs)))
        self.assertEqual({record["key"] for record in records}, {job.key for job in jobs})
        self.assertEqual({cell["score"] for cell in cells.cells_of(records)}, {1.0})
        self.run_grid(lambda *a: self.fail("asked again"))

    def test_all_methods_are_asked_the_same(self):
        prompts = {}
        self.run_grid(lambda sample, method, budget: prompts.setdefault(sample, []).append((method.name, budget))
                      or right(sample, method, budget))
        self.assertEqual({len(of) for of in prompts.values()}, {5})
        self.assertEqual(len(prompts), 2 * 5)

    def test_no_more_at_a_time_than_allowed_and_really_so_many(self):
        now, most, lock = [0], [0], threading.Lock()
        both = threading.Barrier(3, timeout=60)

        def ask(*a):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            both.wait()  # passes only while three are under way
            with lock:
                now[0] -= 1
            return right(*a)

        self.run_grid(ask, list(the_grid(3).jobs()), parallel=3)
        self.assertEqual(most[0], 3)

    def test_failures_are_asked_again_by_the_next_run_and_refusals_are_not(self):
        def ask(sample, method, budget):
            if method.name == "snapkv" and budget == 64:
                raise runner.Refused("budget_tokens 64 leaves no row")
            if method.name == "full":
                raise runner.Failed("UNAVAILABLE: away")
            return right(sample, method, budget)

        failures, records = self.run_grid(ask, parallel=1)
        self.assertEqual(len(failures), 10)
        refused = [cell for cell in cells.cells_of(records) if "refused" in cell]
        self.assertEqual([(cell["method"], cell["budget"], cell["refused"]["samples"]) for cell in refused],
                         [("snapkv", 64, 5), ("snapkv", 64, 5)])
        again = []
        self.run_grid(lambda *a: again.append(a[1].name) or right(*a))
        self.assertEqual(again, ["full"] * 10)

    def test_gives_up_when_nothing_answers(self):
        def ask(*a):
            raise runner.Failed("UNAVAILABLE: nobody there")

        failures, records = self.run_grid(ask, parallel=1)
        self.assertEqual((len(failures), records), (runner.FAILURES_IN_A_ROW, []))

    def test_an_interrupt_keeps_what_was_answered(self):
        jobs, answered = list(the_grid().jobs()), []

        def step(failed):
            if len(answered) >= 7:
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.run_grid(lambda *a: answered.append(a) or right(*a), step=step)
        again = []
        self.run_grid(lambda *a: again.append(a) or right(*a))
        self.assertEqual(len(answered) + len(again), len(jobs))

    def test_kill_loses_nothing_that_was_answered(self):
        """SIGKILL at three moments; what had been stored is not asked again, and all is there in the end."""
        program = textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {str(HERE)!r})
            import runner_test as t
            def ask(*a):
                time.sleep(0.01)
                return t.right(*a)
            results = t.store.Store({self.folder.name!r})
            t.runner.run(t.the_grid().jobs(), t.runner.Samples(t.TEXTS, t.word_tokens.count, 3), ask, results, 2,
                         lambda failed: print(len(results.done), flush=True))
        """)
        stored = 0
        for more in (3, 6, 9):
            with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout:
                    if int(line) >= stored + more:
                        break
                os.kill(child.pid, signal.SIGKILL)
            records = store.read(os.path.join(self.folder.name, "samples.jsonl"))
            self.assertGreaterEqual(len(records), stored + more)
            stored = len(records)
        jobs, again = list(the_grid().jobs()), []
        self.assertLess(stored, len(jobs))
        failures, records = self.run_grid(lambda *a: again.append(a) or right(*a))
        keys = [record["key"] for record in records]
        self.assertEqual(sorted(keys), sorted(job.key for job in jobs))
        self.assertEqual(len(again), len(jobs) - stored)


class Scores(unittest.TestCase):
    def test_a_score_that_was_measured_is_kept_and_makes_a_divergence(self):
        job = next(the_grid().jobs())
        sample = sample_lib.Sample("forced", (sample_lib.Turn("once upon a time", (), 8),), "agreement")
        records = []
        for index, kl in enumerate((0.01, 0.03)):
            reply = runner.Reply("there was", {**facts(), "kl": kl, "kl_whole": index == 0}, 0.75)
            records.append(runner.record_of(dataclasses.replace(job, index=index), sample, [reply]))
        (cell,) = cells.cells_of(records)
        self.assertEqual((cell["score"], cell["samples"], cell["kl"]["whole"]), (0.75, 2, False))
        self.assertAlmostEqual(cell["kl"]["mean"], 0.02)
        self.assertAlmostEqual(cell["kl"]["high"] - cell["kl"]["low"], 2 * 1.959964 * 0.01)
        text = tables.markdown([cell], the_grid(), [])
        self.assertIn("≥ 0.0200 [0.0004, 0.0396]", text)
        self.assertIn("steps at which", text)
        (single,) = cells.cells_of(records[:1])
        self.assertIsNone(single["kl"]["low"])
        self.assertIn("| 0.0100 |", tables.markdown([single], the_grid(), []))
        json.dumps(single, allow_nan=False)


class Cells(unittest.TestCase):
    def test_first_and_later_turns_are_told_apart(self):
        job = next(the_grid().jobs())
        turns = [{"score": 1.0, **facts()}, {"answer": "hello", **facts()}, {"score": 0.0, **facts()},
                 {"score": 1.0, **facts(), "off": "too short"}]
        record = {**runner.refusal_of(job, ""), "score": 2 / 3, "depth": 0.1, "turns": turns}
        del record["refused"]
        (cell,) = cells.cells_of([record, record])  # the second one has the same key
        self.assertEqual((cell["samples"], cell["turns"]), (1, [1, 0, 1]))
        self.assertEqual((cell["first_turn"]["score"], cell["later_turns"]["score"]), (1, 0.5))
        self.assertEqual((cell["cost"]["wire_bytes"], cell["cost"]["wire_share"]), (200, 0.5))
        self.assertEqual(cell["off"], {"turns": 1, "why": "too short"})
        json.dumps(cell)


if __name__ == "__main__":
    unittest.main()
