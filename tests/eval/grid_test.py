"""What a grid file and a method's text mean."""

import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run  # noqa: E402
from lab import cells, expectations, grid, methods, tables, tasks  # noqa: E402

try:
    from lab import compression_fields, wire
    MISSING = ""
except ImportError as error:
    MISSING = f"needs requirements.txt: {error}"

TABLE = {"tasks": ["vt"], "lengths": [1024, 2048], "budgets": [64, 128], "samples": 2, "defaults": "window=32",
         "define": {"narrow": "snapkv:pooling=max7"}, "part": [{"methods": ["full", "narrow"]}]}


class Methods(unittest.TestCase):
    def test_names_and_definitions(self):
        self.assertEqual(methods.parse("rocketkv"), methods.Method("rocketkv", "rocketkv"))
        method = methods.parse("narrow=snapkv:window=16:pooling=max7", "window=32:min_prompt_tokens=0")
        self.assertEqual(method, methods.Method("narrow", "snapkv:min_prompt_tokens=0:pooling=max7:window=16"))
        self.assertEqual(methods.parse("snapkv:window=8").name, "snapkv:window=8")

    def test_only_full_has_no_budget(self):
        self.assertFalse(methods.parse("full:min_prompt_tokens=0").budgeted)
        self.assertTrue(methods.parse("full:retention=snapkv").budgeted)
        self.assertTrue(methods.parse("sluice").budgeted)

    def test_what_is_no_method_is_named(self):
        for text in ("", "name=", "snapkv:window", "snapkv:=3", "snapkv:window="):
            with self.subTest(text=text), self.assertRaises(ValueError):
                methods.parse(text)

    def test_braces_are_worked_out_for_a_cell(self):
        method = methods.parse("eq=quest:selection.page={length/budget}:budget_tokens={budget/2}")
        self.assertEqual(method.at(4096, 128).definition, "quest:budget_tokens=64:selection.page=32")
        self.assertEqual(method.at(5000, 128).definition, "quest:budget_tokens=64:selection.page=39")
        narrow = methods.parse("sparq:selection.channels={64*budget/length}")
        self.assertEqual([narrow.at(length, 256).definition[-2:] for length in (1024, 32768)], ["16", "=1"])
        for text in ("x:a={}", "x:a={budget+1}", "x:a={budget/}", "x:a={rows/2}", "x:a={budget/0}"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                methods.parse(text)


class Grids(unittest.TestCase):
    def test_shards_share_out_the_prompts(self):
        of = grid.from_table({**TABLE, "samples": 5})
        shards = [list(of.jobs((i, 3))) for i in range(3)]
        self.assertEqual(sorted(job.key for jobs in shards for job in jobs), sorted(job.key for job in of.jobs()))
        self.assertEqual([{job.index for job in jobs} for jobs in shards], [{0, 3}, {1, 4}, {2}])

    def test_jobs_are_the_product_without_doubles(self):
        of = grid.from_table({**TABLE, "part": TABLE["part"] * 2})
        jobs = list(of.jobs())
        self.assertEqual(len(jobs), 2 * 2 * (1 + 2))
        self.assertEqual(len({job.key for job in jobs}), len(jobs))
        self.assertIn("vt|1024|snapkv:pooling=max7:window=32|64|seed1|0", {job.key for job in jobs})

    def test_narrowing_takes_what_is_named(self):
        of = grid.from_table(TABLE).narrowed(lengths=[2048], methods=["narrow"], samples=1, seed=9)
        self.assertEqual([(job.length, job.method.name, job.budget, job.seed) for job in of.jobs()],
                         [(2048, "narrow", 64, 9), (2048, "narrow", 128, 9)])
        with self.assertRaisesRegex(ValueError, "nothing of the grid is left"):
            grid.from_table(TABLE).narrowed(lengths=[4])

    def test_mistakes_are_named(self):
        for change, what in (({"taks": []}, "taks"), ({"samples": 0}, "samples"), ({"tasks": ["nope"]}, "nope"),
                             ({"budgets": ["64"]}, "budgets"), ({"part": [{}]}, "methods")):
            with self.subTest(what=what), self.assertRaisesRegex(ValueError, what):
                grid.from_table({**TABLE, **change})

    def test_the_grids_that_come_along_are_sound(self):
        files = sorted((HERE / "grids").glob("*.toml"))
        self.assertTrue(files)
        for path in files:
            with self.subTest(path=path.name):
                of = grid.load(path)
                self.assertTrue(next(of.jobs()))
                for reference in of.references:
                    self.assertIn(reference["task"], tasks.TASKS)

    def test_a_report_holds_the_cells_of_its_grid_under_their_names_there(self):
        job = next(job for job in grid.from_table(TABLE).jobs() if job.method.name == "narrow")
        ours = {"kind": "sample", "task": job.task, "length": job.length, "definition": job.method.definition,
                "budget": job.budget, "method": "another name"}
        others = {**ours, "length": 4096}, {**ours, "budget": 7}, {**ours, "definition": "full"}
        got = run.only([{"kind": "run"}, ours, *others], grid.from_table(TABLE))
        self.assertEqual(got, [{"kind": "run"}, {**ours, "method": "narrow"}])

    def test_a_broken_file_is_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("tasks = [")
            file.flush()
            with self.assertRaisesRegex(ValueError, file.name):
                grid.load(file.name)


class References(unittest.TestCase):
    def cell(self, score, n, budget=64):
        return {"task": "vt", "length": 1024, "method": "narrow", "definition": "x", "budget": budget,
                **cells.share([1.0] * round(score * n) + [0.0] * (n - round(score * n)))}

    def test_figures_are_compared_by_the_interval_of_their_difference(self):
        reference = {"task": "vt", "length": 1024, "method": "narrow", "budgets": [64, 128, 256],
                     "scores": [100, 50, 7], "samples": 40}
        got = tables.compared([self.cell(1, 40), self.cell(1, 40, 128)], reference)
        self.assertEqual([agrees for _, _, share, agrees in got if share], [True, False])
        self.assertIsNone(got[2][2])
        of = grid.from_table({**TABLE, "reference": [reference]})
        text = tables.markdown([self.cell(1, 40), self.cell(1, 40, 128)], of, ["# x"])
        self.assertIn("1 of 2 figures agree", text)
        self.assertIn("64: 100 / 100; 128: **100 / 50**", text)

    def test_cells_that_do_not_agree_are_asked_again(self):
        reference = {"task": "vt", "length": 1024, "method": "narrow", "scores": [100, 50], "samples": 40}
        of = grid.from_table({**TABLE, "reference": [reference]})
        again = of.again([self.cell(1, 40), self.cell(1, 40, 128)], 3)
        self.assertEqual([(job.length, job.method.name, job.budget, job.index) for job in again.jobs()],
                         [(1024, "narrow", 128, i) for i in range(3)])
        self.assertEqual(of.again([self.cell(1, 40)], 3).parts, ())

    def test_what_must_hold_is_pooled_and_judged(self):
        def expected(at_least, **more):
            return {"tasks": ["vt"], "lengths": [1024, 2048], "method": "narrow", "budgets": [64, 128],
                    "at_least": at_least, **more}

        cells_ = [self.cell(1, 10), {**self.cell(0.5, 30), "length": 2048}]
        self.assertEqual(expectations.values(cells_, expected(0)), [(64, 0.625), (128, None)])
        whole = [{**cell, "method": "full", "budget": None, "score": 0.7} for cell in cells_]
        (_, below), (_, unknown) = expectations.values(cells_ + whole, expected(0, minus="full"))
        self.assertAlmostEqual(below, -0.075)
        self.assertIsNone(unknown)
        of = grid.from_table({**TABLE, "expect": [expected(62.5), expected(63)]})
        lines = tables.markdown(cells_, of, [""]).splitlines()
        self.assertEqual([line.split("|")[-2].strip() for line in lines if "`narrow`: vt" in line],
                         ["holds, in part", "**fails**, in part"])

    def test_a_divergence_has_a_bound_above(self):
        kl = {"low": None, "high": None, "whole": True}
        cells_ = [{**self.cell(1, 10), "kl": {"mean": 0.02, **kl}},
                  {**self.cell(1, 30, 128), "kl": {"mean": 0.002, **kl}}]
        wanted = {"tasks": ["vt"], "lengths": [1024], "method": "narrow", "budgets": [64, 128]}
        of = grid.from_table({**TABLE, "expect": [{**wanted, "kl_at_most": bound} for bound in (0.02, 0.019)]})
        lines = [line for line in tables.markdown(cells_, of, [""]).splitlines() if "`narrow`: vt" in line]
        self.assertIn("| KL ≤ 0.02 | 64: 0.0200; 128: 0.0020 | holds |", lines[0])
        self.assertIn("**fails**", lines[1])
        for bad in (wanted, {**wanted, "at_least": 1, "kl_at_most": 1}):
            with self.assertRaisesRegex(ValueError, "either"):
                grid.from_table({**TABLE, "expect": [bad]})

    def test_earlier_cells_stand_where_the_later_ones_have_fewer_samples(self):
        earlier = [self.cell(1, 40), self.cell(1, 40, 128), self.cell(1, 40, 256)]
        later = [self.cell(0, 39), self.cell(0, 200, 128), self.cell(0, 1, 512)]
        got = {cell["budget"]: cell["samples"] for cell in cells.merged(earlier, later)}
        self.assertEqual(got, {64: 40, 128: 200, 256: 40, 512: 1})

    def test_what_compression_lost_is_the_mean_of_the_turns_that_measured_it(self):
        head = {"kind": "sample", "task": "vt", "length": 1024, "method": "narrow", "definition": "x", "budget": 64}
        cost = dict.fromkeys(("prompt_tokens", "kept_tokens", "read_tokens", "kv_bytes_full", "wire_bytes",
                              "prefill_seconds", "total_seconds"), 1)
        turns = [{"retained_mass": [1.0, 0.5], "top1_tokens": 8, "top1_agreed": 8}, {"loss_skipped": "busy"},
                 {"retained_mass": [0.8, 0.1], "top1_tokens": 2, "top1_agreed": 0}]
        records = [{**head, "key": str(i), "score": 1, "turns": [{"score": 1, "off": "", **cost, **turn}]}
                   for i, turn in enumerate(turns)]
        (cell,) = cells.cells_of(records)
        self.assertEqual((cell["loss"]["turns"], cell["loss"]["top1"]), (2, 0.8))
        for mass, want in zip(cell["loss"]["retained_mass"], (0.9, 0.3), strict=True):
            self.assertAlmostEqual(mass, want)
        text = tables.markdown([cell], grid.Grid(()), [])
        self.assertIn("| `narrow` | 60 (30); 80 |", text)
        self.assertIn("does not predict accuracy", text)
        (without,) = cells.cells_of(records[1:2])
        self.assertNotIn("loss", without)
        self.assertNotIn("does not predict", tables.markdown([without], grid.Grid(()), []))

    def test_every_turn_must_hold(self):
        cells_ = [{**self.cell(1, 10), "turns": [1.0, 0.5]},
                  {**self.cell(1, 10), "method": "full", "turns": [1.0, 0.9]}]
        wanted = {"tasks": ["vt"], "lengths": [1024], "method": "narrow", "minus": "full", "budgets": [64],
                  "turns": "each", "at_least": -5}
        self.assertAlmostEqual(expectations.values(cells_, wanted)[0][1], -0.4)

    def test_percent_rounds_neither_to_all_nor_to_nothing(self):
        self.assertEqual([tables.percent(x) for x in (1, 0.998, 0.004, 0, 0.5)], ["100", "99.8", "0.4", "0", "50"])


@unittest.skipIf(MISSING, MISSING)
class Fields(unittest.TestCase):
    def fill(self, text, budget=None):
        return compression_fields.fill(wire.message("CompressionSpec")(), methods.parse(text), budget)

    def test_fields_reach_the_message(self):
        spec = self.fill("sluice:propagation=tsp:propagation.layer=5:propagation.rate=0.2:retention=snapkv:"
                         "history=keep:pooling=fading16/4:min_prompt_tokens=0", 128)
        self.assertEqual((spec.preset, spec.budget_tokens, spec.min_prompt_tokens), ("sluice", 128, 0))
        self.assertTrue(spec.HasField("min_prompt_tokens"))
        self.assertEqual((spec.propagation.kind, spec.propagation.layer, spec.propagation.rate), (2, 5, 0.2))
        self.assertEqual((spec.retention.kind, spec.history), (2, 2))
        self.assertEqual((spec.pooling.kind, spec.pooling.after, spec.pooling.before), (3, 16, 4))
        self.assertEqual((lambda p: (p.kind, p.kernel))(self.fill("snapkv:pooling=max63").pooling), (1, 63))

    def test_a_method_may_set_its_own_budget(self):
        self.assertEqual(self.fill("snapkv", 128).budget_tokens, 128)
        self.assertEqual(self.fill("snapkv:budget_tokens=64", 128).budget_tokens, 64)
        self.assertEqual(self.fill("snapkv:keep_ratio=0.5", 128).WhichOneof("budget"), "keep_ratio")

    def test_what_the_message_does_not_have_is_listed(self):
        for text, what in (("x:nope=1", "it has preset"), ("x:history=maybe", "HISTORY_KEEP"),
                           ("x:window=a", "window=a"), ("x:pooling.kernel.x=1", "no fields"),
                           ("x:propagation=warp", "PROPAGATION_TSP")):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, what):
                self.fill(text)


if __name__ == "__main__":
    unittest.main()
