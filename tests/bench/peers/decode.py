"""Decode steps: one QKV weight, fused gate and up, a static cache, the best attention, one CUDA graph a step."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import split_kv
from .llama import LayerFunctions, rope_table
from .timing import graph_seconds

TUNED = {"coordinate_descent_tuning": True}  # Inductor then writes matrix-vector kernels of its own


def compiled(functions, names, options=None):
    return {name: torch.compile(getattr(functions, name), dynamic=False, options=options) for name in names}


class Caches:
    """Keys and values of every layer [rows, kv heads * d], seen as any batch and context that fits."""

    def __init__(self, g, rows, device, dtype):
        self.g, self.rows = g, rows
        shape = (rows, g.kv_heads * g.head_dim)
        self.k = [torch.empty(shape, device=device, dtype=dtype).normal_() for _ in range(g.layers)]
        self.v = [torch.empty(shape, device=device, dtype=dtype).normal_() for _ in range(g.layers)]

    def view(self, batch, context):
        """[layer] of k, v [batch, context, kv heads, d]."""
        shape = (batch, context, self.g.kv_heads, self.g.head_dim)
        return [(k[:batch * context].view(shape), v[:batch * context].view(shape)) for k, v in zip(self.k, self.v)]


class DecodeStep:
    """One token of every sequence, whose contexts are equally long; the token goes to the last row of its context."""

    def __init__(self, g, weights, caches, batch, functions=None):
        self.g, self.weights, self.caches, self.batch = g, weights, caches, batch
        plain = LayerFunctions(g)
        self.functions = functions or {name: getattr(plain, name) for name in ("first", "middle", "last")}
        self.library = "default"  # the one that multiplies; see choose_library
        device = weights.embed.device
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.place(1)

    def place(self, context):
        device = self.tokens.device
        self.rows = torch.arange(self.batch, device=device) * context + context - 1
        self.cos, self.sin = rope_table(self.g, torch.full((self.batch,), context - 1, device=device))

    def run(self, attend):
        """attend(layer, q [batch, q heads * d]) like q. Leaves logits and the next tokens."""
        torch.backends.cuda.preferred_blas_library(self.library)
        w, k, v = self.weights, self.caches.k, self.caches.v
        x = w.embed[self.tokens]
        layer = w.layers[0]
        q = self.functions["first"](x, layer.norm1, layer.qkv, self.cos, self.sin, k[0], v[0], self.rows)
        for i, layer in enumerate(w.layers):
            rest = (x, attend(i, q), layer.o, layer.norm2, layer.gate_up, layer.down)
            if i + 1 < len(w.layers):
                following = w.layers[i + 1]
                x, q = self.functions["middle"](*rest, following.norm1, following.qkv, self.cos, self.sin, k[i + 1],
                                                v[i + 1], self.rows)
        self.logits = self.functions["last"](*rest, w.norm, w.head)
        self.tokens.copy_(self.logits.argmax(-1))


def sdpa(g, backend, packed):
    """The library's attention; packed: the query heads of a kv head as queries of one head (no mask in decode)."""

    def attend(q, k, v):
        heads = g.kv_heads if packed else g.q_heads
        queries = q.view(q.shape[0], heads, -1, g.head_dim)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if backend is None:
            out = F.scaled_dot_product_attention(queries, k, v, enable_gqa=not packed)
        else:
            with sdpa_kernel([backend]):
                out = F.scaled_dot_product_attention(queries, k, v, enable_gqa=not packed)
        return out.reshape(q.shape)

    return attend


def attentions(g, batch, context, device):
    """Name and function of all candidates."""
    yield "cudnn", lambda: sdpa(g, SDPBackend.CUDNN_ATTENTION, packed=False)
    yield "flash", lambda: sdpa(g, SDPBackend.FLASH_ATTENTION, packed=False)
    yield "flash, packed heads", lambda: sdpa(g, SDPBackend.FLASH_ATTENTION, packed=True)
    if split_kv.triton is None:
        return
    for block, warps in ((64, 4), (128, 4)):
        for programs in (264, 528, 1056):
            yield f"triton {block}/{programs}", lambda b=block, w=warps, p=programs: split_kv.SplitKv(
                g, batch, context, device, b, w, 3, p)


def plain_attention(g, q, k, v):
    k, v = (x.float().repeat_interleave(g.group, 2).transpose(1, 2) for x in (k, v))
    q = q.view(q.shape[0], g.q_heads, 1, g.head_dim).float()
    return ((q @ k.transpose(2, 3) / math.sqrt(g.head_dim)).softmax(-1) @ v).reshape(q.shape[0], -1)


def difference(a, b):
    """Largest difference in units of the largest value."""
    return ((a.float() - b.float()).abs().max() / b.float().abs().max()).item()


def best_attention(g, report, caches, batch, context, check):
    """(seconds of one layer, name, function) of the fastest candidate that agrees with f32."""
    layers = caches.view(batch, context)
    q = torch.randn(batch, g.q_heads * g.head_dim, device=layers[0][0].device, dtype=layers[0][0].dtype)
    expected = plain_attention(g, q[:1], layers[0][0][:1], layers[0][1][:1]) if check else None
    best, seen, times = None, set(), {}
    for name, make in attentions(g, batch, context, q.device):
        with report.step(f"attention {name}, batch {batch}, context {context}"):
            attend = make()
            if getattr(attend, "name", name) in seen:
                continue
            seen.add(getattr(attend, "name", name))
            if expected is not None:
                error = difference(attend(q, *layers[0])[:1], expected)
                if not error < 0.02:
                    raise ValueError(f"differs from f32 by {error:.3g} of the largest value")
            seconds = graph_seconds(lambda: [attend(q, k, v) for k, v in layers], repeats=5) / len(layers)
            times[name] = round(seconds * 1e6, 2)
            if best is None or seconds < best[0]:
                best = (seconds, getattr(attend, "name", name), attend)
    if best is None:
        raise RuntimeError("no attention works")
    bytes_read = 2 * layers[0][0].numel() * layers[0][0].element_size()
    report.add(what="decode attention", batch=batch, context=context, attention=best[1], us=best[0] * 1e6,
               mb=bytes_read / 1e6, tb_s=bytes_read / best[0] / 1e12, all_us=times)
    return best


def step_seconds(step, caches, context, attend):
    step.place(max(context, 1))
    if attend is None:
        return graph_seconds(lambda: step.run(lambda layer, q: q))
    layers = caches.view(step.batch, context)
    return graph_seconds(lambda: step.run(lambda layer, q: attend(q, *layers[layer])))


def choose_library(report, step, caches):
    """Takes the faster library for the products of this batch."""
    times = {}
    for library in ("cublas", "cublaslt"):
        with report.step(f"{library}, batch {step.batch}"):
            step.library = library
            times[step_seconds(step, caches, 0, None)] = library
    step.library = times[min(times)] if times else "default"


def repeated_math(g):
    """gpt-fast's attention: K and V repeated to all query heads, a mask over the whole cache, the math backend. Caches
    are [batch, kv heads, context, d] there."""

    def attend(q, k, v, mask):
        batch, _, _, d = k.shape
        k = k.repeat_interleave(g.group, dim=1)
        v = v.repeat_interleave(g.group, dim=1)
        with sdpa_kernel([SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q.view(batch, g.q_heads, 1, d), k, v, attn_mask=mask)
        return out.reshape(q.shape)

    return attend


def gpt_fast_seconds(g, step, caches, context):
    shape = (step.batch, g.kv_heads, context, g.head_dim)
    layers = [(k[:step.batch * context].view(shape), v[:step.batch * context].view(shape))
              for k, v in zip(caches.k, caches.v)]
    mask = torch.ones(1, 1, 1, context, dtype=torch.bool, device=step.tokens.device)
    attend = torch.compile(repeated_math(g), dynamic=False, options=TUNED)
    step.place(context)
    return graph_seconds(lambda: step.run(lambda layer, q: attend(q, *layers[layer], mask)))
