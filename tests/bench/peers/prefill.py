"""Prefill of one prompt, whole or thinned after one layer (FastKV), and the choice of what to keep, in plain torch."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from .llama import LayerFunctions, rope_table

MLP_ROWS = 16384  # rows of a chunk: all of 128K at once would need 7.5 GB for gate and up
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def causal_attention(backend):
    """q [n, heads, d], k and v [n, kv heads, d] to [n, heads * d]."""

    def attend(q, k, v):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        if backend is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            with sdpa_kernel([BACKENDS[backend]]):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(q.shape[2], -1)

    return attend


def window_scores(g, q, k, window, pool):
    """Scores [kv heads, n - window] f32: softmax over all keys of the last queries, summed over them and the group,
    max-pooled over neighbours."""
    n = k.shape[0]
    queries = q[-window:].view(window, g.kv_heads, g.group, g.head_dim).permute(1, 2, 0, 3)
    scores = (queries.reshape(g.kv_heads, -1, g.head_dim) @ k.permute(1, 2, 0)).float() / math.sqrt(g.head_dim)
    scores = scores.view(g.kv_heads, g.group, window, n)
    later = torch.ones(window, window, dtype=torch.bool, device=q.device).triu(1)
    scores[..., -window:].masked_fill_(later, -math.inf)
    total = scores.softmax(-1)[..., :-window].sum((1, 2))
    return F.max_pool1d(total[:, None], pool, stride=1, padding=pool // 2)[:, 0]


def keep_rows(g, q, k, v, keep, window=32, pool=63):
    """The best keep - window rows of each kv head and the window, in order: k and v [kv heads, keep, d]."""
    n = k.shape[0]
    top = window_scores(g, q, k, window, pool).topk(keep - window, dim=-1, sorted=False).indices.sort(-1).values
    recent = torch.arange(n - window, n, device=k.device).expand(g.kv_heads, -1)
    rows = torch.cat((top, recent), -1)[..., None].expand(-1, -1, g.head_dim)
    return k.transpose(0, 1).gather(1, rows), v.transpose(0, 1).gather(1, rows)


def best_tokens(g, q, k, keep, window=8, pool=7):
    """FastKV's choice: of all heads together, the window kept, in order."""
    n = k.shape[0]
    scores = window_scores(g, q, k, window, pool).sum(0)
    top = scores.topk(keep - window, sorted=False).indices.sort().values
    return torch.cat((top, torch.arange(n - window, n, device=k.device)))


def kept_of_budget(context, budget):
    """Rows that RocketKV's first stage keeps for a budget of tokens read a step (arXiv 2502.14051)."""
    ratio = context / budget
    return round(context / ratio ** min(0.2 + 0.06 * math.log2(ratio), 0.8))


class Prefill:
    def __init__(self, g, weights, compile_functions):
        self.g, self.weights = g, weights
        functions = LayerFunctions(g)
        self.project, self.finish, self.norm = functions.project, functions.finish, functions.norm
        if compile_functions:
            self.project, self.finish = torch.compile(functions.project), torch.compile(functions.finish)

    def run(self, ids, attend, thin_after=None, share=0.2, layers=None):
        """Logits of the last token; the cache, a layer's k and v [n, kv heads, d], stays in self.cache."""
        g, w = self.g, self.weights
        x = w.embed[ids]
        cos, sin = rope_table(g, torch.arange(len(ids), device=ids.device))
        self.cache = []
        for i, layer in enumerate(w.layers[:layers]):
            q, k, v = self.project(x, layer.norm1, layer.qkv, cos, sin)
            self.cache.append((k, v))
            attended = attend(q, k, v)
            for begin in range(0, len(x), MLP_ROWS):
                rows = slice(begin, begin + MLP_ROWS)
                x[rows] = self.finish(x[rows], attended[rows], layer.o, layer.norm2, layer.gate_up, layer.down)
            if i == thin_after:
                chosen = best_tokens(g, q, k, round(share * len(ids)))
                x, cos, sin = x[chosen], cos[chosen], sin[chosen]
        return F.linear(self.norm(x[-1:], w.norm), w.head)
