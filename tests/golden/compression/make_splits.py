#!/usr/bin/env python3
"""Writes splits.json: the budget split of RocketKV's accuracy code for random requests.

Standard library only. Run in this folder: python3 make_splits.py
"""
import json
import math
import random


def split(prompt, m, t, context, head_dim):
    total = min(prompt + m, context)
    c = max(1, total / t)
    r = min(0.2 + 0.06 * math.log2(c), 0.8)
    cap = int(total / c**r)
    cap = max(cap, min(2 * m, total))
    c2 = max(1, cap / t)
    p = math.ceil(math.sqrt(c2))
    if p > c2:
        p = 1
    return {"cap": cap, "prompt_budget": cap - m, "tokens": t // 2, "page": p, "channels": int(head_dim * p / c2)}


def main():
    rng = random.Random(11)
    rows = []
    for _ in range(300):
        context = rng.choice([2048, 8192, 32768, 127500, 128000])
        m = rng.choice([1, 5, 32, 50, 128])
        prompt = rng.randint(1, context)
        t = rng.choice([16, 100, 128, 256, 500, 512, 1024, 2048, 4096])
        head_dim = rng.choice([64, 96, 128])
        rows.append({"prompt": prompt, "m": m, "t": t, "context": context, "head_dim": head_dim,
                     **split(prompt, m, t, context, head_dim)})
    with open("splits.json", "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
