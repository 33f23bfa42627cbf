"""Writes load_math.json: arrivals of a Poisson process and percentiles, by Python's standard library alone.

The generator is MT19937-64 as its authors define it (Nishimura, Matsumoto: "Tables of 64-bit Mersenne Twisters", 2000),
written out here. Percentiles are statistics.quantiles(method="inclusive"), the linear rule of numpy.percentile.

    python3 make_load_math.py > load_math.json
"""

import json
import math
import random
import statistics

MASK = (1 << 64) - 1
N, M = 312, 156


def mt19937_64(seed):
    state = [seed & MASK]
    for i in range(1, N):
        state.append((6364136223846793005 * (state[-1] ^ (state[-1] >> 62)) + i) & MASK)
    while True:
        for i in range(N):
            x = (state[i] & 0xFFFFFFFF80000000) | (state[(i + 1) % N] & 0x7FFFFFFF)
            state[i] = state[(i + M) % N] ^ (x >> 1) ^ (0xB5026F5AA96619E9 if x & 1 else 0)
        for x in state:
            x ^= (x >> 29) & 0x5555555555555555
            x ^= (x << 17) & 0x71D67FFFEDA60000
            x ^= (x << 37) & 0xFFF7EEE000000000
            yield x ^ (x >> 43)


def arrivals(rate, seed, count):
    at, out = 0.0, []
    for bits, _ in zip(mt19937_64(seed), range(count)):
        at -= math.log(1 - (bits >> 11) / 2**53) / rate
        out.append(at)
    return out


def percentiles(values):
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {
        "values": values,
        "mean": statistics.fmean(values),
        "std": statistics.pstdev(values),
        "percentiles": [cuts[p - 1] for p in (50, 90, 95, 99)],
    }


if __name__ == "__main__":
    rng = random.Random(7)
    data = {
        "arrivals": [
            {"rate": rate, "seed": seed, "seconds": arrivals(rate, seed, 400)[::19]}
            for rate, seed in ((1.0, 0), (2.5, 42), (400.0, (1 << 63) + 5))
        ],
        "percentiles": [
            percentiles(values)
            for values in (
                [3.0, 1.0],
                [5.0, 1.0, 4.0, 2.0, 3.0],
                [round(rng.lognormvariate(3, 1), 3) for _ in range(101)],
                [round(rng.lognormvariate(3, 1), 3) for _ in range(64)],
            )
        ],
    }
    print(json.dumps(data, indent=1))
