#!/usr/bin/env python3
"""What plain PyTorch reaches on this GPU, with random weights in the geometry of Llama-3.1-8B.

  torch_peers.py --json peers.json                    everything, the most wanted first, within --seconds
  torch_peers.py --parts decode --decode 1x1024,8x32768
  torch_peers.py --check                              the checks alone; on a CPU without a GPU

Decode is one CUDA graph a step over compiled layer functions and the fastest of cuDNN's, flash and a Triton split-KV
attention; tuned lets Inductor write the matrix-vector kernels of batch 1; gptfast, with those, repeats K and V to all
query heads in math attention. All contexts are exactly as long as the cache and known: the best case. Every figure is
the median of graph replays or of whole prefills.
"""

import argparse
import gc
import json
import os
import sys

PARTS = ("prefill", "selection", "decode", "tuned", "gptfast")
DECODE = ("1x0,1x1024,1x131008,8x32768,1x98304,24x32768,1x8192,1x16384,1x32768,8x0,8x8192,8x1024,32x8192,32x1024,"
          "32x0")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"in order, of {', '.join(PARTS)}")
    parser.add_argument("--decode", default=DECODE, help="batch x context, in order; context 0: no attention")
    parser.add_argument("--gptfast", default="98304", help="contexts at batch 1")
    parser.add_argument("--prefill", default="8192,32768,131008", help="prompt lengths")
    parser.add_argument("--flash-up-to", type=int, default=32768, help="longest prompt that flash attention runs too")
    parser.add_argument("--thin-after", type=int, default=15, help="layer of the thinned prefill; it keeps a fifth")
    parser.add_argument("--budget", type=int, default=512, help="tokens a decode step may read, for what is kept")
    parser.add_argument("--seconds", type=float, default=200, help="start no row after this long")
    parser.add_argument("--json", default="", help="file for the rows, written after each")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--check", action="store_true", help="checks on a tiny model, no figures")
    args = parser.parse_args()
    unknown = set(args.parts.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--parts: no part {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    try:
        args.decode = [tuple(map(int, pair.split("x"))) for pair in args.decode.split(",") if pair]
        args.gptfast = [int(n) for n in args.gptfast.split(",") if n]
        args.prefill = [int(n) for n in args.prefill.split(",") if n]
    except ValueError as error:
        parser.error(f"lists of numbers: {error}")
    return args


def measure_decode(g, weights, report, args, functions_of):
    """Rows of the fair decode step; returns what the later parts reuse: caches and the best attentions."""
    from peers.decode import Caches, DecodeStep, best_attention, choose_library, step_seconds
    caches = Caches(g, max([1] + [b * max(c, 1) for b, c in args.decode] + args.gptfast), weights.embed.device,
                    weights.embed.dtype)
    steps, attends = {}, {}
    for batch, context in args.decode:
        if report.clock.left() < 0:
            break
        with report.step(f"decode, batch {batch}, context {context}"):
            if context:
                attends[batch, context] = best_attention(g, report, caches, batch, context, check=True)
            if batch not in steps:
                steps[batch] = DecodeStep(g, weights, caches, batch, functions_of(None))
                choose_library(report, steps[batch], caches)
            attend = attends[batch, context] if context else (0, "none", None)
            seconds = step_seconds(steps[batch], caches, context, attend[2])
            report.add(what="decode", style="fair", linears=steps[batch].library, batch=batch, context=context,
                       ms=seconds * 1e3, attention=attend[1])
    return caches, attends


def measure_tuned(g, weights, report, args, caches, attends, functions_of):
    from peers.decode import TUNED, DecodeStep, step_seconds
    """Rows of batch 1 with Inductor's own matrix-vector kernels; returns the step."""
    functions = functions_of(TUNED)
    if functions is None:
        return None
    step = DecodeStep(g, weights, caches, 1, functions)
    for batch, context in args.decode:
        if batch != 1 or report.clock.left() < 0 or (context and (1, context) not in attends):
            continue
        with report.step(f"decode tuned, context {context}"):
            attend = attends[1, context] if context else (0, "none", None)
            seconds = step_seconds(step, caches, context, attend[2])
            report.add(what="decode", style="fair", linears="tuned", batch=1, context=context, ms=seconds * 1e3,
                       attention=attend[1])
    return step


def measure_gpt_fast(g, weights, report, args, caches, step, functions_of):
    from peers.decode import TUNED, DecodeStep, gpt_fast_seconds
    step = step or DecodeStep(g, weights, caches, 1, functions_of(TUNED))
    for context in args.gptfast:
        if report.clock.left() < 0:
            return
        with report.step(f"gptfast, context {context}"):
            seconds = gpt_fast_seconds(g, step, caches, context)
            report.add(what="decode", style="gptfast", linears="tuned", batch=1, context=context, ms=seconds * 1e3,
                       attention="math, K and V repeated")


def measure_prefill(g, weights, report, args):
    import torch
    from peers.prefill import Prefill, causal_attention
    from peers.timing import seconds_of
    prefill = Prefill(g, weights, compile_functions=not args.eager)
    for n in args.prefill:
        ids = torch.randint(g.vocab, (n,), device=weights.embed.device)
        for backend in ("cudnn", "flash"):
            for thin_after in (None, args.thin_after):
                flash_too = n <= args.flash_up_to and thin_after is None
                if report.clock.left() < 0 or (backend == "flash" and not flash_too):
                    continue
                with report.step(f"prefill {n}, {backend}, thinned after {thin_after}"):
                    attend = causal_attention(backend)
                    # Two layers build plans and compile; a long prompt then runs once.
                    prefill.run(ids, attend, None if thin_after is None else 0, layers=2)
                    run = lambda: prefill.run(ids, attend, thin_after)
                    seconds = seconds_of(run, repeats=3, warm=1) if n <= 65536 else seconds_of(run, repeats=1, warm=0)
                    report.add(what="prefill", style="full" if thin_after is None else "tsp", tokens=n,
                               ms=seconds * 1e3, attention=backend)
                    prefill.cache = []


def measure_selection(g, report, args, device, dtype):
    import torch
    from peers.prefill import keep_rows, kept_of_budget
    from peers.timing import graph_seconds
    for n in args.prefill:
        if report.clock.left() < 0:
            return
        with report.step(f"selection {n}"):
            q = torch.randn(n, g.q_heads, g.head_dim, device=device, dtype=dtype)
            k = torch.randn(n, g.kv_heads, g.head_dim, device=device, dtype=dtype)
            keep = kept_of_budget(n, args.budget)
            seconds = graph_seconds(lambda: keep_rows(g, q, k, k, keep), repeats=5) * g.layers
            report.add(what="selection", tokens=n, keep=keep, ms=seconds * 1e3)


def print_table(report):
    print("\nwhat                    batch  tokens         ms   with")
    for row in report.rows:
        if row["what"] in ("decode", "prefill", "selection"):
            what = " ".join(filter(None, (row["what"], row.get("style"), row.get("linears"))))
            print(f"{what:<24}{row.get('batch', 1):>5}{row.get('context', row.get('tokens')):>8}{row['ms']:>11.3f}   "
                  f"{row.get('attention', '')}")
    for failure in report.failures:
        print("FAILED", failure)


def main():
    args = arguments()
    import torch
    from peers import split_kv
    from peers.checks import run_checks
    from peers.llama import LLAMA_8B, LayerFunctions, Weights
    from peers.timing import Clock, Report
    torch.set_grad_enabled(False)
    torch._dynamo.config.recompile_limit = 64  # a batch each
    gpu = torch.cuda.is_available()
    if not gpu and not args.check:
        sys.exit("torch_peers.py: no GPU; --check runs without one")
    device = "cuda" if gpu else "cpu"
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if gpu else "cpu",
             "cudnn": torch.backends.cudnn.version() if gpu else 0, "geometry": "llama-3.1-8b"}

    def write(report):
        if args.json:
            with open(args.json + ".part", "w") as file:
                json.dump({**about, "rows": report.rows, "failures": report.failures}, file, indent=1)
            os.replace(args.json + ".part", args.json)

    report = Report(Clock(args.seconds), write)
    print(*(f"{name}={value}" for name, value in about.items()), flush=True)
    failed = run_checks(report, device, compile_functions=gpu and not args.eager)
    if failed - {"check_kernels", "check_compiled"} or args.check:
        print("failed: " + ", ".join(sorted(failed)) if failed else "checks passed")
        sys.exit(bool(failed))
    if "check_kernels" in failed:
        split_kv.triton = None
    args.eager |= "check_compiled" in failed

    g, functions = LLAMA_8B, LayerFunctions(LLAMA_8B)
    weights = Weights(g, device, torch.bfloat16)

    def functions_of(options):
        from peers.decode import compiled
        return None if args.eager else compiled(functions, ("first", "middle", "last"), options)

    caches = attends = tuned = None
    for part in args.parts.split(","):
        if report.clock.left() < 0:
            break
        if part in ("prefill", "selection"):
            caches = attends = tuned = None  # a long prompt needs their memory
        gc.collect()
        torch.cuda.empty_cache()
        with report.step(part):
            if part in ("decode", "gptfast", "tuned") and caches is None:
                caches, attends = measure_decode(g, weights, report, args, functions_of)
            if part == "tuned":
                tuned = measure_tuned(g, weights, report, args, caches, attends, functions_of)
            elif part == "gptfast":
                measure_gpt_fast(g, weights, report, args, caches, tuned, functions_of)
            elif part == "prefill":
                measure_prefill(g, weights, report, args)
            elif part == "selection":
                measure_selection(g, report, args, device, torch.bfloat16)
    print_table(report)


if __name__ == "__main__":
    main()
