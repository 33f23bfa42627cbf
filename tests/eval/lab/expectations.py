"""What a grid says must hold: scores, pooled over tasks and lengths, against a bound or against another method; or the
divergence from full KV against a bound."""

KEYS = {"about", "tasks", "lengths", "method", "minus", "budgets", "turns", "at_least", "kl_at_most"}


def check(table):
    """ValueError names what a grid file's [[expect]] lacks."""
    for key in ("tasks", "lengths", "method", "budgets"):
        if key not in table:
            raise ValueError(f"an [[expect]] does not say {key}")
    if ("at_least" in table) == ("kl_at_most" in table):
        raise ValueError("an [[expect]] says either at_least or kl_at_most")


def holds(value, expectation):
    if "kl_at_most" in expectation:
        return value <= expectation["kl_at_most"]
    return value >= expectation["at_least"] / 100 - 1e-9


def bound(expectation):
    return f"KL ≤ {expectation['kl_at_most']}" if "kl_at_most" in expectation else f"≥ {expectation['at_least']}"


def show(value, expectation):
    return f"{value:.4f}" if "kl_at_most" in expectation else f"{100 * value:.1f}"


def values(cells, expectation):
    """[(budget, value or None)]: the score, or by how much it is above that of `minus`; None: not measured yet."""
    out = []
    for budget in expectation["budgets"]:
        ours = _pooled(cells, expectation, expectation["method"], budget)
        theirs = _pooled(cells, expectation, expectation["minus"], budget) if "minus" in expectation else None
        if ours is None or ("minus" in expectation and theirs is None):
            out.append((budget, None))
        else:
            out.append((budget, min(a - b for a, b in zip(ours, theirs or [0.0] * len(ours)))))
    return out


def _pooled(cells, expectation, method, budget):
    """The scores that have to hold, one (all turns, the first or the later ones) or one a turn, pooled over cells."""
    found = []
    for task in expectation["tasks"]:
        for length in expectation["lengths"]:
            cell = next((cell for cell in cells if cell["task"] == task and cell["length"] == length
                         and cell["method"] == method and cell["budget"] in (budget, None) and "score" in cell), None)
            if cell is None:
                return None
            if "kl_at_most" in expectation:
                found.append((cell["samples"], [cell["kl"]["mean"]]))
                continue
            turns = expectation.get("turns")
            scores = {"first": lambda c: [c["first_turn"]["score"]], "later": lambda c: [c["later_turns"]["score"]],
                      "each": lambda c: c["turns"]}.get(turns, lambda c: [c["score"]])(cell)
            found.append((cell["samples"], scores))
    samples = sum(n for n, _ in found)
    return [sum(n * scores[i] for n, scores in found) / samples for i in range(len(found[0][1]))]
