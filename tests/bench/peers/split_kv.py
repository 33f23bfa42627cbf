"""Decode attention by splits of the context: a Triton kernel a split, one that merges them."""

import math

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    # grid (batch * kv head, split). The G query heads of a kv head are rows of one tile, padded to 16, so that
    # K and V are read once. Writes unnormalised sums [program, G, D] f32 with maximum (base 2) and weight.
    @triton.jit
    def _split(q, k, v, sums, maxima, totals, context, split_length, scale, HEADS: tl.constexpr, G: tl.constexpr,
               D: tl.constexpr, N: tl.constexpr):
        pair = tl.program_id(0)
        split = tl.program_id(1)
        n_splits = tl.num_programs(1)
        begin = split * split_length
        end = tl.minimum(begin + split_length, context)
        g = tl.arange(0, 16)
        d = tl.arange(0, D)
        n = tl.arange(0, N)
        queries = tl.load(q + (pair * G + g)[:, None] * D + d[None, :], mask=g[:, None] < G, other=0.0)
        base = ((pair // HEADS).to(tl.int64) * context * HEADS + pair % HEADS) * D
        k_tile = k + base + n[None, :] * (HEADS * D) + d[:, None]
        v_tile = v + base + n[:, None] * (HEADS * D) + d[None, :]
        maximum = tl.full([16], -float("inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        sum = tl.zeros([16, D], tl.float32)
        for row in range(begin, end, N):
            seen = row + n < end
            keys = tl.load(k_tile + row * (HEADS * D), mask=seen[None, :], other=0.0)
            scores = tl.where(seen[None, :], tl.dot(queries, keys) * scale, -float("inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, 1))
            weights = tl.exp2(scores - new_maximum[:, None])
            fade = tl.exp2(maximum - new_maximum)
            total = total * fade + tl.sum(weights, 1)
            values = tl.load(v_tile + row * (HEADS * D), mask=seen[:, None], other=0.0)
            sum = tl.dot(weights.to(values.dtype), values, sum * fade[:, None])
            maximum = new_maximum
        place = (pair * n_splits + split) * G + g
        tl.store(sums + place[:, None] * D + d[None, :], sum, mask=g[:, None] < G)
        tl.store(maxima + place, maximum, mask=g < G)
        tl.store(totals + place, total, mask=g < G)

    # grid (batch * kv head, G): one query head's splits.
    @triton.jit(do_not_specialize=["n_splits"])
    def _merge(sums, maxima, totals, out, n_splits, G: tl.constexpr, D: tl.constexpr, P: tl.constexpr):
        pair = tl.program_id(0)
        g = tl.program_id(1)
        d = tl.arange(0, D)
        maximum = -float("inf")
        total = 0.0
        sum = tl.zeros([D], tl.float32)
        for begin in range(0, n_splits, P):
            split = begin + tl.arange(0, P)
            place = (pair * n_splits + split) * G + g
            seen = split < n_splits
            m = tl.load(maxima + place, mask=seen, other=-float("inf"))
            t = tl.load(totals + place, mask=seen, other=0.0)
            parts = tl.load(sums + place[:, None] * D + d[None, :], mask=seen[:, None], other=0.0)
            new_maximum = tl.maximum(maximum, tl.max(m, 0))
            weights = tl.exp2(m - new_maximum)
            fade = tl.exp2(maximum - new_maximum)
            total = total * fade + tl.sum(t * weights, 0)
            sum = sum * fade + tl.sum(parts * weights[:, None], 0)
            maximum = new_maximum
        tl.store(out + (pair * G + g) * D + d, (sum / total).to(out.dtype.element_ty))


def split_count(pairs, context, block, programs):
    """Splits that give about that many programs, none shorter than a block."""
    return max(1, min(context // block, round(programs / pairs)))


class SplitKv:
    """Attention of q [batch, q heads * d] over k, v [batch, context, kv heads, d], contiguous."""

    def __init__(self, g, batch, context, device, block, warps, stages, programs):
        self.g, self.block, self.warps, self.stages = g, block, warps, stages
        self.pairs = batch * g.kv_heads
        splits = split_count(self.pairs, context, block, programs)
        self.length = math.ceil(context / splits / block) * block
        self.splits = math.ceil(context / self.length)
        self.name = f"triton, {self.splits} splits, {block} keys, {warps} warps"
        shape = (self.pairs * self.splits, g.group)
        self.sums = torch.empty(*shape, g.head_dim, device=device, dtype=torch.float32)
        self.maxima = torch.empty(shape, device=device, dtype=torch.float32)
        self.totals = torch.empty(shape, device=device, dtype=torch.float32)

    def __call__(self, q, k, v):
        g = self.g
        out = torch.empty_like(q)
        _split[(self.pairs, self.splits)](q, k, v, self.sums, self.maxima, self.totals, k.shape[1], self.length,
                                          math.log2(math.e) / math.sqrt(g.head_dim), HEADS=g.kv_heads, G=g.group,
                                          D=g.head_dim, N=self.block, num_warps=self.warps, num_stages=self.stages)
        _merge[(self.pairs, g.group)](self.sums, self.maxima, self.totals, out, self.splits, G=g.group, D=g.head_dim,
                                      P=16, num_warps=4)
        return out
