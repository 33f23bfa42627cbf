"""Geometry, random weights and layer functions of a Llama, in plain torch, with a naive reference beside them."""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Geometry:
    hidden: int
    intermediate: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    theta: float = 500000.0
    eps: float = 1e-5

    @property
    def group(self):
        return self.q_heads // self.kv_heads


LLAMA_8B = Geometry(4096, 14336, 32, 32, 8, 128, 128256)
TINY = Geometry(256, 512, 3, 8, 2, 32, 500)


@dataclasses.dataclass
class Layer:
    norm1: torch.Tensor
    qkv: torch.Tensor  # [(q + 2 kv heads) * d, hidden]
    o: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor  # [2 * intermediate, hidden], gate first
    down: torch.Tensor


class Weights:
    """Normal weights of unit gain, so that activations have the size they have in a trained model."""

    def __init__(self, g, device, dtype, seed=1):
        generator = torch.Generator(device=device).manual_seed(seed)

        def matrix(rows, cols):
            return torch.empty(rows, cols, device=device, dtype=dtype).normal_(
                0, 1 / math.sqrt(cols), generator=generator)

        def ones():
            return torch.ones(g.hidden, device=device, dtype=dtype)

        q, kv = g.q_heads * g.head_dim, g.kv_heads * g.head_dim
        self.embed = matrix(g.vocab, g.hidden) * math.sqrt(g.hidden)
        self.layers = [
            Layer(ones(), matrix(q + 2 * kv, g.hidden), matrix(g.hidden, q), ones(),
                  matrix(2 * g.intermediate, g.hidden), matrix(g.hidden, g.intermediate))
            for _ in range(g.layers)
        ]
        self.norm = ones()
        self.head = matrix(g.vocab, g.hidden)


def rope_table(g, positions):
    """cos, sin f32 [n, d / 2]. Plain RoPE: Llama 3.1's scaling changes the table, not the work."""
    powers = torch.arange(0, g.head_dim, 2, device=positions.device, dtype=torch.float32) / g.head_dim
    angles = positions.float()[:, None] * g.theta ** -powers
    return angles.cos(), angles.sin()


class LayerFunctions:
    """What lies between two attentions, as functions of tensors: each is compiled once for all layers."""

    def __init__(self, g):
        q_size, kv_size = g.q_heads * g.head_dim, g.kv_heads * g.head_dim

        def norm(x, weight):
            f = x.float()
            return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + g.eps)).to(x.dtype) * weight

        def rotate(x, cos, sin):  # [n, heads, d]
            a, b = x.float().chunk(2, -1)
            c, s = cos[:, None], sin[:, None]
            return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)

        def project(x, norm1, qkv, cos, sin):
            """q [n, q heads, d], k and v [n, kv heads, d]."""
            n = x.shape[0]
            q, k, v = F.linear(norm(x, norm1), qkv).split((q_size, kv_size, kv_size), -1)
            return (rotate(q.view(n, g.q_heads, g.head_dim), cos, sin),
                    rotate(k.view(n, g.kv_heads, g.head_dim), cos, sin), v.view(n, g.kv_heads, g.head_dim))

        def finish(x, attended, o, norm2, gate_up, down):
            x = x + F.linear(attended, o)
            gate, up = F.linear(norm(x, norm2), gate_up).chunk(2, -1)
            return x + F.linear(F.silu(gate) * up, down)

        def first(x, norm1, qkv, cos, sin, k_cache, v_cache, rows):
            """Queries of a decode step's first layer; keys and values go to rows of the caches [rows, kv heads * d]."""
            q, k, v = project(x, norm1, qkv, cos, sin)
            k_cache[rows] = k.reshape(-1, kv_size)
            v_cache[rows] = v.reshape(-1, kv_size)
            return q.reshape(-1, q_size)

        def middle(x, attended, o, norm2, gate_up, down, norm1, qkv, cos, sin, k_cache, v_cache, rows):
            """The rest of one layer and the start of the next, so that the norm between them can be fused."""
            x = finish(x, attended, o, norm2, gate_up, down)
            return x, first(x, norm1, qkv, cos, sin, k_cache, v_cache, rows)

        def last(x, attended, o, norm2, gate_up, down, final_norm, head):
            x = finish(x, attended, o, norm2, gate_up, down)
            return F.linear(norm(x, final_norm), head)

        self.norm, self.project, self.finish = norm, project, finish
        self.first, self.middle, self.last = first, middle, last


def reference(g, weights, ids):
    """Logits of the last token, and k, v of every layer [n, kv heads, d], f32, nothing fused or shared."""
    f = lambda w: w.float()
    n = len(ids)
    positions = torch.arange(n, device=ids.device)
    cos, sin = rope_table(g, positions)

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + g.eps).sqrt() * f(weight)

    def rotate(x):
        half = g.head_dim // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * torch.cat((cos, cos), -1)[:, None] + turned * torch.cat((sin, sin), -1)[:, None]

    causal = positions[:, None] >= positions[None, :]
    x, caches = f(weights.embed)[ids], []
    for layer in weights.layers:
        qkv = (norm(x, layer.norm1) @ f(layer.qkv).T).view(n, -1, g.head_dim)
        q, k = rotate(qkv[:, :g.q_heads]), rotate(qkv[:, g.q_heads:g.q_heads + g.kv_heads])
        v = qkv[:, g.q_heads + g.kv_heads:]
        caches.append((k, v))
        heads = []
        for head in range(g.q_heads):
            scores = q[:, head] @ k[:, head // g.group].T / math.sqrt(g.head_dim)
            heads.append(scores.masked_fill(~causal, -math.inf).softmax(-1) @ v[:, head // g.group])
        x = x + torch.cat(heads, -1) @ f(layer.o).T
        gate, up = (norm(x, layer.norm2) @ f(layer.gate_up).T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ f(layer.down).T
    return norm(x[-1:], weights.norm) @ f(weights.head).T, caches
