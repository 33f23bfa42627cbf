#!/usr/bin/env python3
"""The targets of Sluice on one GPU beside what a run reached, as a Markdown table.

  target_table.py --model model.json --peers peers.json [--kernels kernels.json]
                  [--handoff prefill.log decode.log]

The files are of model_bench, torch_peers.py and kernel_bench (each with --json) in one run on one GPU; --handoff takes
the logs of a prefill and a decode server, each with a GPU of the same host, so that both read the same clock. What a
file lacks is not measured. Targets were set before the first run, from rooflines and from peers measured on the same
kind of GPU (an H200).
"""

import argparse
import json
import re
import statistics

LAYERS = 32
OFFICIAL_ROCKETKV_MS = 6.93  # batch 1, 96K, budget 512: its authors' code on an H200, in another run
SHORT, LONG, LONGEST = 1024, 98304, 131008
NAMES = {1024: "1K", 8192: "8K", 32768: "32K", 98304: "96K", 131008: "128K"}


class Figures:
    """Rows of the files; every getter gives None where nothing was measured."""

    def __init__(self, model, peers, kernels, handoff):
        self.model, self.peers, self.kernels = (file.get("rows", []) for file in (model, peers, kernels))
        self.handoff = handoff

    @staticmethod
    def least(rows, value, **fields):
        found = [row[value] for row in rows if all(row.get(name) == wanted for name, wanted in fields.items())]
        return min(found) if found else None

    def step(self, preset, batch, context):
        return self.least(self.model, "ms", what="decode", preset=preset, batch=batch, context=context)

    def prefill(self, preset, tokens):
        return self.least(self.model, "ms", what="prefill", preset=preset, tokens=tokens)

    def gates(self, preset, tokens):
        return ratio(self.least(self.model, "gates_ms", what="prefill", preset=preset, tokens=tokens),
                     self.prefill(preset, tokens))

    def fill(self, preset, context):
        wanted = ("fill", preset, context)
        rows = [row for row in self.model if (row["what"], row["preset"], row.get("context")) == wanted]
        return rows[-1] if rows else None

    def peer_step(self, batch, context, style="fair"):
        return self.least(self.peers, "ms", what="decode", style=style, batch=batch, context=context)

    def peer_library(self, context):
        """Batch 1 with the library's products alone."""
        return min(filter(None, (self.least(self.peers, "ms", what="decode", style="fair", linears=linears, batch=1,
                                            context=context) for linears in ("cublas", "cublaslt"))), default=None)

    def peer_prefill(self, tokens, style="full"):
        return self.least(self.peers, "ms", what="prefill", style=style, tokens=tokens)

    def peer_attention(self, batch, context):
        rows = [row["tb_s"] for row in self.peers
                if (row["what"], row.get("batch"), row.get("context")) == ("decode attention", batch, context)]
        return max(rows, default=None)

    def attention(self, batch, context):
        gb_s = self.least(self.kernels, "gb_s", name=f"decode 32/8x128 batch {batch} of {context} dense")
        return None if gb_s is None else gb_s / 1e3


def ratio(a, b):
    return None if a is None or b is None else a / b


NONE = "not measured"


def show(value, form):
    return NONE if value is None else form.format(value)


def parts(*texts):
    """Texts with "; " between them, or that none was measured."""
    return NONE if all(NONE in text for text in texts) else "; ".join(texts)


def verdict(*reached):
    """Of (value, least) or (value, most, "most") pairs."""
    results = []
    for value, limit, *most in reached:
        results.append(None if value is None else value <= limit if most else value >= limit)
    if False in results:
        return "missed"
    return NONE if None in results else "reached"


def rows_of(f):
    """What, must reach, measured, peer in the same run, verdict."""
    ours, peer = f.step("full", 1, SHORT), f.peer_step(1, SHORT)
    yield ("decode step, batch 1, 1K", "≤ 4.1 ms and ≥ 1.15 × the peer",
           parts(show(ours, "{:.2f} ms"), show(ratio(peer, ours), "{:.2f} ×")),
           parts(show(peer, "{:.2f} ms"), f"with cuBLAS {show(f.peer_library(SHORT), '{:.2f} ms')}"),
           verdict((ours, 4.1, "most"), (ratio(peer, ours), 1.15)))

    for mb, batch, context, peer_context, least in ((67, 1, 16384, 16384, 3.35), (134, 1, 32768, 32768, 3.8),
                                                    (268, 8, 8192, 8192, 4.15), (537, 1, 131072, LONGEST, 4.35),
                                                    (1074, 8, 32768, 32768, 4.55)):
        rate = f.attention(batch, context)
        yield (f"dense decode attention, {mb} MB of KV a layer (batch {batch})", f"≥ {least} TB/s",
               show(rate, "{:.2f} TB/s"), show(f.peer_attention(batch, peer_context), "{:.2f} TB/s"),
               verdict((rate, least)))

    for batch, most in ((1, 8), (8, 12)):
        sparse, none = f.step("rocketkv", batch, 32768), f.step("none", batch, 0)
        layer = None if sparse is None or none is None else (sparse - none) / LAYERS * 1e3
        yield (f"hybrid attention a layer over no attention, batch {batch}", f"≤ {most} µs", show(layer, "{:.1f} µs"),
               "", verdict((layer, most, "most")))

    dense, sparse = f.step("full", 1, LONGEST), f.step("rocketkv", 1, LONGEST)
    yield ("decode, `rocketkv` over our dense, batch 1, 128K", "≥ 1.85 ×", show(ratio(dense, sparse), "{:.2f} ×"),
           show(f.peer_step(1, LONGEST), "{:.2f} ms, dense"), verdict((ratio(dense, sparse), 1.85)))

    dense, sparse, peer = f.step("full", 8, 32768), f.step("rocketkv", 8, 32768), f.peer_step(8, 32768)
    yield ("… batch 8, 32K (and over the peer's dense)", "≥ 2.6 × (2.7 ×)",
           parts(show(ratio(dense, sparse), "{:.2f} ×"), show(ratio(peer, sparse), "{:.2f} × the peer's")),
           show(peer, "{:.2f} ms, dense"), verdict((ratio(dense, sparse), 2.6), (ratio(peer, sparse), 2.7)))

    full, sparse = f.fill("full", 32768), f.fill("rocketkv", 32768)
    gain = ratio(sparse and sparse["tokens_s"], full and full["tokens_s"])
    batches = f" (batch {sparse['batch']} over {full['batch']})" if gain else ""
    peer = f.peer_step(24, 32768)
    yield ("throughput at equal KV memory, 32K, `rocketkv` over our dense", "≥ 12 ×", show(gain, "{:.1f} ×") + batches,
           show(peer and 24e3 / peer, "{:.0f} tokens/s, dense, batch 24"), verdict((gain, 12)))

    sparse, old = f.step("rocketkv", 1, LONG), f.peer_step(1, LONG, "gptfast")
    fair = f.peer_step(1, LONG)
    yield ("`rocketkv` over a gpt-fast style baseline, batch 1, 96K (over the fair peer)", "≥ 3.6 × (1.8 ×)",
           parts(show(ratio(old, sparse), "{:.2f} ×"), show(ratio(fair, sparse), "{:.2f} × the fair one")),
           parts(show(old, "{:.2f} ms"), show(fair, "fair {:.2f} ms")),
           verdict((ratio(old, sparse), 3.6), (ratio(fair, sparse), 1.8)))
    official = ratio(OFFICIAL_ROCKETKV_MS, sparse)
    yield ("`rocketkv` over its authors' code, batch 1, 96K", "≥ 1.6 ×", show(official, "{:.2f} ×"),
           f"{OFFICIAL_ROCKETKV_MS} ms, of another run", verdict((official, 1.6)))

    ours, peer = f.prefill("full", LONGEST), f.peer_prefill(LONGEST)
    yield ("prefill, full attention, 128K", "≤ 10.7 s and ≥ 1.03 × the peer",
           parts(show(ours and ours / 1e3, "{:.2f} s"), show(ratio(peer, ours), "{:.2f} ×")),
           show(peer and peer / 1e3, "{:.2f} s"), verdict((ours, 10700, "most"), (ratio(peer, ours), 1.03)))

    for tokens, least in ((8192, 1.70), (32768, 1.75), (LONGEST, 1.83)):
        gain = ratio(f.prefill("full", tokens), f.prefill("tsp", tokens))
        peer = ratio(f.peer_prefill(tokens), f.peer_prefill(tokens, "tsp"))
        yield (f"prefill, `tsp` over full, {NAMES[tokens]}", f"≥ {least:.2f} ×", show(gain, "{:.2f} ×"),
               show(peer, "{:.2f} ×"), verdict((gain, least)))

    for tokens, most in ((8192, 1.2), (32768, 0.5)):
        shares = {preset: f.gates(preset, tokens) for preset in ("rocketkv", "sluice")}
        peer = ratio(Figures.least(f.peers, "ms", what="selection", tokens=tokens), f.peer_prefill(tokens))
        yield (f"all gates, share of prefill, {NAMES[tokens]}", f"≤ {most} %",
               parts(*(f"`{preset}` {show(share and 100 * share, '{:.2f} %')}" for preset, share in shares.items())),
               show(peer and 100 * peer, "{:.1f} %"),
               verdict(*((share and 100 * share, most, "most") for share in shares.values())))

    exposed, committed = (statistics.median(ms) for ms in zip(*f.handoff)) if f.handoff else (None, None)
    yield ("KV hand-off exposed after the last layer, two GPUs, 32K, budget 512", "≤ 1 ms",
           parts(show(exposed, "{:.2f} ms"), show(committed, "with Commit's way back {:.2f} ms")), "",
           verdict((exposed, 1, "most")))


def handoffs(prefill_log, decode_log):
    """Milliseconds of every hand-off from its last layer's kept rows to their validation, and to Commit on prefill."""
    with open(decode_log) as file:
        validated = dict(re.findall(r"handoff ready id=(\S+ attempt=\d+) .*validated_us=(\d+)", file.read()))
    with open(prefill_log) as file:
        committed = re.findall(r"handoff committed id=(\S+ attempt=\d+) .*exposed_ms=([\d.]+) .*last_kept_us=(\d+)",
                               file.read())
    return [((int(validated[key]) - int(kept)) / 1e3, float(ms)) for key, ms, kept in committed if key in validated]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "peers", "kernels"):
        parser.add_argument(f"--{name}", metavar="FILE")
    parser.add_argument("--handoff", metavar="LOG", nargs=2)
    args = parser.parse_args()

    def load(path):
        if not path:
            return {}
        with open(path) as file:
            return json.load(file)

    handoff = handoffs(*args.handoff) if args.handoff else []
    model, peers, kernels = load(args.model), load(args.peers), load(args.kernels)
    print(f"Sluice: {model.get('device', 'not measured')}. Peer: torch {peers.get('torch', 'not measured')}, cuDNN "
          f"{peers.get('cudnn', '?')}, {peers.get('device', '?')}.\n")
    print("| what | must reach | measured | peer, same run | verdict |\n|---|---|---|---|---|")
    for row in rows_of(Figures(model, peers, kernels, handoff)):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
