#!/usr/bin/env python3
"""Writes retention.json: which rows chunkkv, pyramidkv, adakv, h2o and the switches of snapkv keep, and tsp and
rerun let go on, computed in float64 from the definitions (algorithms.md §1, §5, §6, §10-13). Inputs and margins are
make_selection.py's. Needs numpy.
Run in this folder: python3 make_retention.py
"""
import numpy as np

from make_selection import pool, top, values, write_solved


def round_bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def attention(q, k, rounded):
    """q: of the last rows, [held, heads, d]; k [kv_heads, n, d] -> weights [heads, held, n]."""
    kv_heads, n, d = k.shape
    held, heads, _ = q.shape
    weights = np.zeros((heads, held, n))
    for h in range(heads):
        for i in range(held):
            own = n - held + i
            z = k[h // (heads // kv_heads), :own + 1] @ q[i, h] / np.sqrt(d)
            a = np.exp(z - z.max())
            weights[h, i, :own + 1] = a / a.sum()
    return round_bf16(weights) if rounded else weights


def products(q, k):
    """As attention, of q.k itself."""
    kv_heads, n, _ = k.shape
    held, heads, _ = q.shape
    out = np.zeros((heads, held, n))
    for h in range(heads):
        for i in range(held):
            own = n - held + i
            out[h, i, :own + 1] = k[h // (heads // kv_heads), :own + 1] @ q[i, h]
    return out


def by_group(x, group):
    return x.reshape(-1, group, x.shape[-1]).sum(axis=1)


def observed(case, weights):
    """Scores of the rows before the window, [kv_heads, n - window]."""
    window, n = case["window"], case["n"]
    heads = weights[:, -window:, :n - window].sum(axis=1)
    if case["pool_per_head"]:
        return by_group(np.stack([pool(s, case["pooling"]) for s in heads]), case["group"])
    return np.stack([pool(s, case["pooling"]) for s in by_group(heads, case["group"])])


def chunk_means(scores, chunk):
    out = np.empty_like(scores)
    for begin in range(0, scores.shape[1], chunk):
        out[:, begin:begin + chunk] = scores[:, begin:begin + chunk].mean(axis=1, keepdims=True)
    return out


def pyramid(budget, window, n, layers):
    """Rows of every layer: PyramidKV's whole steps, less what they exceed the budget by, the lowest layers first."""
    each = budget - window
    least = each // 20
    most = 2 * each - least
    if most >= n - window:
        most, least = n - window, 2 * each - (n - window)
    step = (most - least) // (layers - 1)
    rows = [most - layer * step for layer in range(layers)]
    excess = sum(rows) - layers * each
    for layer in range(layers):
        rows[layer] -= excess // layers + (layer < excess % layers)
    return [window + r for r in rows]


def ada_rows(scores, each, floor):
    """Rows of every head beside the window."""
    flat = top(scores.reshape(-1), each * len(scores))
    if flat is None:
        return None
    wins = np.bincount([i // scores.shape[1] for i in flat], minlength=len(scores))
    shares = [int(np.round(w * (1 - floor) + np.floor(each * floor))) for w in wins]
    shares = [min(s, scores.shape[1]) for s in shares]
    left = each * len(scores) - sum(shares)
    for head in sorted(range(len(scores)), key=lambda h: (-wins[h], h)):
        change = max(-shares[head], min(left, scores.shape[1] - shares[head]))
        shares[head] += change
        left -= change
    return shares


def solve(case, seed):
    d, n, kv_heads, group = case["head_dim"], case["n"], case["kv_heads"], case["group"]
    q = values(2 * seed, (case["held"], kv_heads * group, d))
    k = values(2 * seed + 1, (kv_heads, n, d))
    weights = products(q, k) if case.get("raw") else attention(q, k, case["round_weights"])
    window, budget, kind = case["window"], case["budget"], case["kind"]
    if kind in ("tsp", "rerun"):
        go_on = top(observed(case, weights).sum(axis=0), case["rows"] - window)
        return None if go_on is None else {**case, "seed": seed, "go_on": go_on + list(range(n - window, n))}
    tail = case["recent"] if kind == "h2o" else window
    rows = [budget - tail] * kv_heads
    if kind == "h2o":
        scores = by_group(weights.sum(axis=1), group)[:, :n - tail]
    else:
        scores = observed(case, weights)
    if case.get("one_set"):
        scores = np.repeat(scores.sum(axis=0, keepdims=True), kv_heads, axis=0)
    if kind == "chunkkv":
        scores = chunk_means(scores, case["chunk"])
    elif kind == "pyramidkv":
        rows = [pyramid(budget, window, n, case["layers"])[case["layer"]] - window] * kv_heads
    elif kind == "adakv":
        rows = ada_rows(scores, budget - window, case["floor"])
    if rows is None:
        return None
    keep = [top(s, r) for s, r in zip(scores, rows)]
    if any(k is None for k in keep):
        return None
    return {**case, "seed": seed, "keep": [k + list(range(n - tail, n)) for k in keep]}


def main():
    max7, max15, none = ({"kind": "max", "kernel": k} for k in (7, 15, 1))
    fading = {"kind": "fading", "after": 16.0, "before": 4.0}
    plain = {"kind": "snapkv", "kv_heads": 2, "head_dim": 16, "n": 300, "window": 8, "held": 8, "budget": 48,
             "pooling": max7, "pool_per_head": False, "round_weights": False}
    cases = []
    for group in (1, 3, 4, 7, 8):
        base = {**plain, "group": group}
        cases.append({**base, "pool_per_head": True})
        cases.append({**base, "pool_per_head": True, "pooling": fading})
        cases.append({**base, "round_weights": True})
        for pooling, chunk in ((none, 10), (max15, 10), (none, 7), (max15, 1), (none, 100)):
            cases.append({**base, "kind": "chunkkv", "pooling": pooling, "chunk": chunk})
        for layer in (0, 3, 11):
            cases.append({**base, "kind": "pyramidkv", "layer": layer, "layers": 12})
        for floor in (0.0, 0.2, 0.5, 1.0):
            cases.append({**base, "kind": "adakv", "floor": floor, "kv_heads": 4})
        # Every query of the prompt, and of a later turn only.
        cases.append({**base, "kind": "h2o", "recent": 24, "held": 300, "window": 300})
        cases.append({**base, "kind": "h2o", "recent": 20, "held": 100, "window": 100})
    cases.append({**plain, "group": 3, "kind": "h2o", "recent": 50, "n": 1300, "held": 1300, "window": 1300,
                  "budget": 128})
    cases.append({**plain, "group": 3, "kind": "pyramidkv", "layer": 0, "layers": 5, "n": 97})
    cases.append({**plain, "group": 3, "kind": "adakv", "floor": 0.1, "n": 50})
    avg5 = {"kind": "avg", "kernel": 5}
    for group in (1, 3, 4, 7, 8):
        base = {**plain, "group": group, "kv_heads": 3}
        # As kvpress: one set for all heads, average pooling of every query head, chunks of 20.
        cases.append({**base, "kind": "chunkkv", "one_set": True, "chunk": 20, "pooling": avg5, "pool_per_head": True})
        # FastKV, then GemFilter as Sluice has it and as published but for the window that is forced.
        cases.append({**base, "kind": "tsp", "rows": 60, "pool_per_head": True})
        cases.append({**base, "kind": "rerun", "rows": 60, "pooling": max15, "window": 32, "held": 32})
        cases.append({**base, "kind": "rerun", "rows": 60, "raw": True, "pooling": avg5, "window": 1})
    write_solved("retention.json", cases, solve)


if __name__ == "__main__":
    main()
