"""That the peers compute what they claim: against a naive f32 model, and every shortcut against the plain way."""

import dataclasses

import torch

from . import decode, llama, prefill, split_kv


def check_model(report, device):
    """A prefill, and the step after it, give the logits of the naive model over all tokens."""
    g = llama.TINY
    weights = llama.Weights(g, device, torch.float32)
    ids = torch.randint(g.vocab, (41,), device=device)
    expected, caches = llama.reference(g, weights, ids)

    pass_ = prefill.Prefill(g, weights, compile_functions=False)
    prefill_error = decode.difference(pass_.run(ids, prefill.causal_attention(None)), expected)

    rows = decode.Caches(g, 2 * len(ids), device, torch.float32)
    for layer, (k, v) in enumerate(caches):
        for row in range(2):
            end = (row + 1) * len(ids) - 1
            rows.k[layer][end + 1 - len(ids):end] = k[:-1].reshape(len(ids) - 1, -1)
            rows.v[layer][end + 1 - len(ids):end] = v[:-1].reshape(len(ids) - 1, -1)
    step = decode.DecodeStep(g, weights, rows, batch=2)
    step.tokens.fill_(ids[-1])
    step.place(len(ids))
    layers, attend = rows.view(2, len(ids)), decode.sdpa(g, None, packed=False)
    step.run(lambda layer, q: attend(q, *layers[layer]))
    step_error = decode.difference(step.logits, expected.expand(2, -1))

    packed = decode.sdpa(g, None, packed=True)
    step.tokens.fill_(ids[-1])
    step.run(lambda layer, q: packed(q, *layers[layer]))
    packed_error = decode.difference(step.logits, expected.expand(2, -1))

    q = torch.randn(2, g.q_heads * g.head_dim, device=device)
    k, v = layers[0]
    mask = torch.ones(1, 1, 1, len(ids), dtype=torch.bool, device=device)
    heads_first = (x.transpose(1, 2).contiguous() for x in (k, v))
    repeated_error = decode.difference(decode.repeated_math(g)(q, *heads_first, mask),
                                       decode.plain_attention(g, q, k, v))
    report.add(what="check", prefill=prefill_error, step=step_error, packed=packed_error, repeated=repeated_error)
    return max(prefill_error, step_error, packed_error, repeated_error) < 1e-3


def check_selection(report, device):
    """Rows that the window looks at are kept, with their values, in order, and a thinned prefill keeps a fifth."""
    g, n, keep = llama.TINY, 400, 100
    q = torch.randn(n, g.q_heads, g.head_dim, device=device)
    k = torch.randn(n, g.kv_heads, g.head_dim, device=device)
    wanted = torch.tensor([3, 77, 201], device=device)
    q[-32:] = 3 * k[wanted[0]].repeat_interleave(g.group, 0)
    k[wanted] = k[wanted[0]].clone()
    v = torch.arange(n, device=device, dtype=torch.float32)[:, None, None].expand_as(k)
    kept_k, kept_v = prefill.keep_rows(g, q, k, v, keep, pool=1)
    places = kept_v[..., 0].long()
    good = bool((places.diff(dim=-1) > 0).all()) and all(bool((places == row).any(-1).all()) for row in wanted)
    good = good and places.shape == (g.kv_heads, keep) and bool((places[:, -32:] >= n - 32).all())
    good = good and torch.equal(kept_k[0], k[places[0], 0])

    weights = llama.Weights(g, device, torch.float32)
    pass_ = prefill.Prefill(g, weights, compile_functions=False)
    pass_.run(torch.randint(g.vocab, (n,), device=device), prefill.causal_attention(None), thin_after=1)
    lengths = [len(k) for k, _ in pass_.cache]
    report.add(what="check", selection=good, lengths=lengths)
    return good and lengths == [n, n, n // 5]


def check_kernels(report, device):
    """The split kernel at uneven contexts, one split and many, against f32 attention."""
    g = dataclasses.replace(llama.LLAMA_8B, layers=1)
    worst = 0.0
    for batch, context, programs in ((1, 1, 132), (2, 1000, 132), (3, 64, 132), (1, 4097, 1056), (5, 333, 8)):
        q = torch.randn(batch, g.q_heads * g.head_dim, device=device, dtype=torch.bfloat16)
        k, v = (torch.randn(batch, context, g.kv_heads, g.head_dim, device=device, dtype=torch.bfloat16)
                for _ in range(2))
        for block in (64, 128):
            attend = split_kv.SplitKv(g, batch, context, device, block, 4, 3, programs)
            worst = max(worst, decode.difference(attend(q, k, v), decode.plain_attention(g, q, k, v)))
    report.add(what="check", split_kv=worst)
    return worst < 0.01


def check_compiled(report, device):
    """Compiled layer functions give what the plain ones do, cache and all."""
    g = llama.TINY
    weights = llama.Weights(g, device, torch.bfloat16)
    plain = llama.LayerFunctions(g)
    runs = []
    for functions in (None, decode.compiled(plain, ("first", "middle", "last"))):
        torch.manual_seed(3)
        rows = decode.Caches(g, 64, device, torch.bfloat16)
        step = decode.DecodeStep(g, weights, rows, 2, functions)
        step.place(32)
        step.tokens.fill_(7)
        layers, attend = rows.view(2, 32), decode.sdpa(g, None, packed=False)
        step.run(lambda layer, q: attend(q, *layers[layer]))
        runs.append((step.logits, rows.k[2][[31, 63]], rows.v[2][[31, 63]]))
    errors = [decode.difference(a, b) for a, b in zip(*runs)]
    report.add(what="check", compiled=max(errors))
    return max(errors) < 0.05


def run_checks(report, device, compile_functions):
    """Names of the checks that failed."""
    torch.manual_seed(1)
    checks = [check_model, check_selection]
    if device == "cuda" and split_kv.triton is not None:
        checks.append(check_kernels)
    if compile_functions:
        checks.append(check_compiled)
    failed = {check.__name__ for check in checks}
    for check in checks:
        with report.step(check.__name__):
            if not check(report, device):
                raise ValueError("results differ")
            failed.remove(check.__name__)
    return failed
