#!/usr/bin/env python3
"""Measures the answers of a running cluster: tasks x methods x budgets x lengths, through the public gRPC API.

    python3 tests/eval/run.py --router 127.0.0.1:7100 --tasks ruler --methods full,snapkv,rocketkv,sluice \\
        --budgets 128,256,512,1024 --lengths 1024,4096 --samples 20 --out build/eval/first
    python3 tests/eval/run.py --router 127.0.0.1:7100 --grid tests/eval/grids/reference_4k.toml --out build/eval/4k
    python3 tests/eval/run.py --report-only --out build/eval/4k

Interrupted, the same command goes on where it was. It writes into --out: samples.jsonl (every sample, as it comes),
results.json, table.md and plots/. Exit code 0: all there; 1: some samples got no answer; 2: usage; 130: interrupted.
"""

import argparse
import json
import os
import pathlib
import shlex
import signal
import sys
import time

CHECKED_TEXT = "id 0f5c-4a91:  'x1' = 3.14159;\tWe'll see\u2014na\u00efve \u4f60\u597d 1234567\n\n  end.\n"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from lab import cells, grid, methods, runner, store, tables, tasks, texts  # noqa: E402


def words(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text):
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"\"{text}\": want whole numbers with commas between") from None


def shard(text):
    number, slash, of = text.partition("/")
    if not (slash and number.isdigit() and of.isdigit() and int(number) < int(of)):
        raise argparse.ArgumentTypeError(f"\"{text}\": want I/N, 0/2 and 1/2 for two runs")
    return int(number), int(of)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", help="HOST:PORT of a router")
    parser.add_argument("--model", default=str(ROOT / "models/needle-14m"),
                        help="the served model's folder, tokenizer.json or GGUF file (default: the bundled model)")
    parser.add_argument("--texts", default=str(ROOT / "models/needle-14m"),
                        help="folder of haystack.txt and train/words.json (default: the bundled model's)")
    parser.add_argument("--grid", help="TOML file of what to measure; --tasks and the like then choose from it")
    parser.add_argument("--tasks", type=words, help=f"of {', '.join(tasks.TASKS)}; groups: {', '.join(tasks.GROUPS)}")
    parser.add_argument("--methods", type=words,
                        help="[NAME=]PRESET[:FIELD=VALUE]..., with commas between; see README.md")
    parser.add_argument("--budgets", type=numbers, help="budgets in tokens (default: 512)")
    parser.add_argument("--lengths", type=numbers, help="tokens of prompt and answer (default: 4096)")
    parser.add_argument("--samples", type=int, help="samples a cell (default: 20)")
    parser.add_argument("--seed", type=int, help="of the prompts (default: 1)")
    parser.add_argument("--out", required=True, help="folder of the results; an earlier run there goes on")
    parser.add_argument("--shard", type=shard, default=(0, 1), metavar="I/N",
                        help="only every N-th prompt, from number I on: N runs share a grid among as many clusters; "
                        "their samples.jsonl, one behind the other, are those of the whole")
    parser.add_argument("--again", type=int, metavar="N",
                        help="N samples of the cells in --out that a [[reference]] of the grid does not bear out")
    parser.add_argument("--loss", action="store_true",
                        help="of every prompt, what compression lost on it (servers with --shadow-rate above 0)")
    parser.add_argument("--earlier", metavar="FILE",
                        help="results.json of an earlier run: its cells stand where --out has fewer samples of its own")
    parser.add_argument("--parallel", type=int, default=4, help="requests at a time (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=600, help="of one request [seconds]")
    parser.add_argument("--patience", type=float, default=120,
                        help="for how long a request that may be repeated is repeated [seconds]")
    parser.add_argument("--formats", type=words, default=["svg", "png", "pdf"], help="of the plots; \"\" draws none")
    parser.add_argument("--report-only", action="store_true", help="only tables and plots, of what is in --out")
    args = parser.parse_args()
    if not args.report_only and not args.router:
        parser.error("--router: name a router, or --report-only")
    if not args.report_only and not args.grid and not (args.tasks and args.methods):
        parser.error("name --tasks and --methods, or a --grid")
    if args.again and not args.grid:
        parser.error("--again: name the --grid that holds the other figures")
    for name in ("samples", "parallel", "again"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name}: at least 1")
    return args


def grid_of(args):
    if not args.grid:
        used = tuple(methods.parse(text) for text in args.methods or [])
        part = grid.Part(tuple(tasks.names(args.tasks or [])), tuple(args.lengths or [4096]), used,
                         tuple(args.budgets or [512]), args.samples or 20)
        return grid.Grid((part,), 1 if args.seed is None else args.seed)
    return grid.load(args.grid).narrowed(tasks.names(args.tasks) if args.tasks else None, args.lengths, args.methods,
                                         args.budgets, args.samples, args.seed)


def measure(args, wanted, results):
    """Returns the failures."""
    from tqdm import tqdm

    from lab import compression_fields, wire
    from lab.client import Client
    from lab.tokens import Tokens

    tokens = Tokens(args.model)
    client = Client(args.router, tokens, args.timeout, args.patience, args.loss)
    served = client.model()
    for record in results.records:
        if record["kind"] == "run" and record["model"] != served.id:
            raise ValueError(f"--out: holds results of {record['model']}, and {args.router} serves {served.id}")
    haystack = texts.Texts(args.texts)
    client.check_tokenizer(CHECKED_TEXT + "\n\n".join(haystack.prose(0, 20)))
    samples = runner.Samples(haystack, tokens.count, wanted.seed)
    jobs = list(wanted.jobs(args.shard))
    for method in dict.fromkeys(job.method.at(job.length, job.budget) for job in jobs):
        compression_fields.fill(wire.message("CompressionSpec")(), method, None)
    for task, length in dict.fromkeys((job.task, job.length) for job in jobs):
        if length > served.context_length:
            raise ValueError(f"--lengths: {length} is more than the context of {served.context_length}")
        try:
            samples.get(task, length, 0)
        except ValueError as error:
            raise ValueError(f"{task} at {length}: {error}") from None
    results.add({"kind": "run", "model": served.id, "kv_bytes_per_token": served.kv_bytes_per_token,
                 "context": served.context_length, "command": shlex.join(["python3", *sys.argv]),
                 "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def interrupt(*_):
        client.stopping.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    left = sum(job.key not in results.done for job in jobs)
    with tqdm(total=len(jobs), initial=len(jobs) - left, unit="sample", smoothing=0.05, disable=None) as bar:
        return runner.run(jobs, samples, client.ask, results, args.parallel, lambda failed: bar.update(not failed))


def only(records, wanted):
    """The records of the grid's cells, under the grid's names for its methods."""
    names = {(job.task, job.length, job.method.definition, job.budget): job.method.name for job in wanted.jobs()}
    out = []
    for record in records:
        if record["kind"] != "sample":
            out.append(record)
            continue
        name = names.get(tuple(record[key] for key in ("task", "length", "definition", "budget")))
        if name is not None:
            out.append({**record, "method": name})
    return out


def cells_with(earlier, records):
    """The records' cells, and those of an earlier results.json that had more samples, or that the records lack."""
    found = cells.cells_of(records)
    if not earlier:
        return found
    return cells.merged(json.loads(pathlib.Path(earlier).read_text(encoding="utf-8"))["cells"], found)


def report(args, wanted, records):
    if args.grid:
        records = only(records, wanted)
    runs = [record for record in records if record["kind"] == "run"]
    left = 0
    if wanted is not None and not args.report_only:
        left = len({job.key for job in wanted.jobs(args.shard)} - {record.get("key") for record in records})
    found = cells_with(args.earlier, records)
    if args.earlier:
        runs = json.loads(pathlib.Path(args.earlier).read_text(encoding="utf-8"))["runs"] + runs
    out = pathlib.Path(args.out)
    summary = {"model": runs[-1]["model"] if runs else "", "runs": runs, "samples_missing": left, "cells": found}
    write(out / "results.json", json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    header = [f"# {summary['model']}", ""]
    if wanted is not None and wanted.about:
        header += [wanted.about, ""]
    header += ["```", *dict.fromkeys(run["command"] for run in runs), "```"]
    if left:
        header += ["", f"**Not complete: {left} samples are missing.**"]
    write(out / "table.md", tables.markdown(found, wanted or grid.Grid(()), header))
    if args.formats and any("score" in cell for cell in found):
        from lab import plots
        plots.draw(found, records, out / "plots", args.formats)


def write(path, text):
    """All or nothing."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def main():
    args = arguments()
    failures, interrupted = [], False
    try:
        wanted = grid_of(args) if args.grid or args.tasks else None
        results = store.Store(args.out)
        asked = wanted
        if args.again:
            asked = wanted.again(cells_with(args.earlier, results.records), args.again)
        if not args.report_only:
            try:
                failures = measure(args, asked, results)
            except KeyboardInterrupt:
                interrupted = True
            except (runner.Failed, runner.Refused) as why:
                sys.exit(f"{args.router}: {why}")
        report(args, wanted, results.records)
    except (ValueError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    for line in failures[:10]:
        print(f"no answer: {line}", file=sys.stderr)
    if failures:
        print(f"{len(failures)} samples got no answer; the same command asks for them again", file=sys.stderr)
    if interrupted:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    print(f"{args.out}: results.json, table.md" + (", plots/" if args.formats else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
