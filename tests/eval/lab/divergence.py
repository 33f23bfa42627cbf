"""How far one set of distributions is from another, over the steps of one text.

A step is {token id: natural log-probability} of the tokens that are told, best first: the whole vocabulary, or a part.
"""

import math

UNTOLD = 1e-6  # less than this share in the rest is what rounding leaves


def kl(p, q):
    """KL(p || q) in nats: over the tokens that both tell, and all others as one. With whole vocabularies that is the
    divergence itself; else it is at most that, as what is thrown together cannot differ."""
    total, rest_p, rest_q = 0.0, 1.0, 1.0
    for token, log_p in p.items():
        if token not in q:
            continue
        share = math.exp(log_p)
        if share > 0:
            total += share * (log_p - q[token])
        rest_p -= share
        rest_q -= math.exp(q[token])
    if rest_p > UNTOLD:
        total += rest_p * math.log(rest_p / max(rest_q, UNTOLD))
    return max(0.0, total)


def agrees(p, q):
    """Whether both would take the same token."""
    return next(iter(p)) == next(iter(q))


def over(full, other):
    """(mean KL(full || other), share of steps that agree), over the steps that decode computes: the first one's logits
    are prefill's. ValueError: the two are not of one text."""
    if len(full) != len(other) or len(full) < 2:
        raise ValueError(f"{len(full)} and {len(other)} steps: want the same number, two at least")
    pairs = list(zip(full, other))[1:]
    return (sum(kl(p, q) for p, q in pairs) / len(pairs), sum(agrees(p, q) for p, q in pairs) / len(pairs))
