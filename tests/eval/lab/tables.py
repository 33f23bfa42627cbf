"""Cells as Markdown."""

from lab import expectations, intervals, tasks


def markdown(cells, grid, header):
    """header: lines of text on top. All tables of a run."""
    out = list(header)
    for task in _order([cell["task"] for cell in cells]):
        for length in sorted({cell["length"] for cell in cells if cell["task"] == task}):
            here = [cell for cell in cells if cell["task"] == task and cell["length"] == length]
            title = "all turns" if _has_turns(here) else "score, % [95 % interval]"
            if _has_kl(here):
                title = "steps at which the model would choose what it chooses with full KV, %"
            out += ["", f"## {task}, {length} tokens", "", *_table(here, "score", title)]
            if _has_kl(here):
                out += ["", *_table(here, "kl", "KL(full KV to this), nats a step [95 % interval]")]
            if _has_turns(here):
                out += ["", *_table(here, "first_turn", "first question"), "",
                        *_table(here, "later_turns", "later questions")]
            if any("loss" in cell for cell in here):
                out += ["", *_loss(here)]
            out += ["", *_wire(here)]
    if grid.references:
        out += ["", "## Against other measurements", "", *_references(cells, grid.references)]
    if grid.expectations:
        out += ["", "## What must hold", "", *_expectations(cells, grid.expectations)]
    notes = _notes(cells)
    if notes:
        out += ["", "## Notes", "", *notes]
    return "\n".join(out) + "\n"


def _order(names):
    known = [name for name in tasks.TASKS if name in names]
    return known + [name for name in dict.fromkeys(names) if name not in known]


def _has_turns(cells):
    return any("later_turns" in cell for cell in cells)


def _has_kl(cells):
    return any("kl" in cell for cell in cells)


def _rows(cells):
    """(method, {budget: cell}), and the budgets."""
    budgets = sorted({cell["budget"] for cell in cells if cell["budget"] is not None})
    rows = {}
    for cell in cells:
        row = rows.setdefault(cell["method"], {})
        for budget in budgets if cell["budget"] is None and budgets else [cell["budget"]]:
            row[budget] = cell
    return rows.items(), budgets or [None]


def _table(cells, field, title):
    rows, budgets = _rows(cells)
    out = [f"| {title} | " + " | ".join(map(_budget, budgets)) + " |",
           "| --- |" + " --- |" * len(budgets)]
    for method, row in rows:
        out.append(f"| `{method}` | " + " | ".join(_score(row.get(budget), field) for budget in budgets) + " |")
    return out


def _budget(budget):
    return "no budget" if budget is None else str(budget)


def _score(cell, field):
    if cell is None:
        return "-"
    if "score" not in cell:
        return "refused"
    share = cell if field == "score" else cell.get(field)
    if share is None:
        return "-"
    mark = " †" if "off" in cell else ""
    if field == "kl":
        interval = "" if share["low"] is None else f" [{max(0, share['low']):.4f}, {share['high']:.4f}]"
        return f"{'' if share['whole'] else '≥ '}{share['mean']:.4f}{interval}{mark}"
    return f"{percent(share['score'])} [{percent(share['low'])}, {percent(share['high'])}]{mark}"


def percent(share):
    """Never "100" or "0" for what is not."""
    text = f"{100 * share:.0f}"
    return f"{100 * share:.1f}" if (text == "100" and share < 1) or (text == "0" and share > 0) else text


def _loss(cells):
    """By layer the figures are in results.json."""
    rows, budgets = _rows(cells)
    out = ["| attention that kept rows hold, %: mean of the layers (least layer); next tokens as full KV's, % | "
           + " | ".join(map(_budget, budgets)) + " |", "| --- |" + " --- |" * len(budgets)]
    for method, row in rows:
        out.append(f"| `{method}` | " + " | ".join(_lost(row.get(budget)) for budget in budgets) + " |")
    return out + ["", "Shown, but it does not predict accuracy: of two methods that hold as much attention one may "
                  "answer everything and the other nothing."]


def _lost(cell):
    if cell is None or "loss" not in cell:
        return "-"
    masses, top1 = cell["loss"]["retained_mass"], cell["loss"]["top1"]
    mass = f"{percent(sum(masses) / len(masses))} ({percent(min(masses))})" if masses else "-"
    return f"{mass}; {'-' if top1 is None else percent(top1)}"


def _wire(cells):
    rows, budgets = _rows(cells)
    out = ["| KV on the wire, % of all KV; rows kept; rows read a step | " + " | ".join(map(_budget, budgets)) + " |",
           "| --- |" + " --- |" * len(budgets)]
    for method, row in rows:
        out.append(f"| `{method}` | " + " | ".join(_cost(row.get(budget)) for budget in budgets) + " |")
    return out


def _cost(cell):
    if cell is None or "cost" not in cell:
        return "-"
    cost = cell["cost"]
    read = f"{cost['read_tokens']:.0f}" if cost["read_tokens"] else "all"
    return f"{100 * cost['wire_share']:.1f} %; {cost['kept_tokens']:.0f}; {read}"


def find(cells, reference, budget):
    """The cell that a reference's figure for a budget is about, or None."""
    for cell in cells:
        same = all(cell[key] == reference[key] for key in ("task", "length", "method"))
        if same and cell["budget"] in (budget, None):
            return cell
    return None


def compared(cells, reference):
    """[(budget, the other's share, ours or None, whether both may be the same)] of a reference."""
    field = {"first": "first_turn", "later": "later_turns"}.get(reference.get("turns"), "score")
    out = []
    for budget, score in zip(reference["budgets"], reference["scores"]):
        cell = find(cells, reference, budget)
        share = None if cell is None or "score" not in cell else cell if field == "score" else cell.get(field)
        same = share and intervals.agree(share["score"], share["samples"], score / 100, reference["samples"])
        out.append((budget, score / 100, share, same))
    return out


def _references(cells, references):
    out = ["Ours, then the other's; **bold** where the 95 % interval of their difference leaves out zero.", "",
           "| task | length | method | n, theirs | " + "budget: ours / theirs |", "| --- | --- | --- | --- | --- |"]
    same = total = 0
    for reference in references:
        parts = []
        for budget, theirs, share, agrees in compared(cells, reference):
            if share is None:
                continue
            total, same = total + 1, same + bool(agrees)
            text = f"{percent(share['score'])} / {percent(theirs)}"
            parts.append(f"{budget}: {text if agrees else f'**{text}**'}")
        if parts:
            turns = {"first": ", first question", "later": ", later questions"}.get(reference.get("turns"), "")
            out.append(f"| {reference['task']}{turns} | {reference['length']} | `{reference['method']}` | "
                       f"{reference['samples']} | {'; '.join(parts)} |")
    return [f"{same} of {total} figures agree."] + out if total else ["Nothing to compare yet."]


def _expectations(cells, expected):
    out = ["| what | bound | budget: measured | verdict |", "| --- | --- | --- | --- |"]
    for expectation in expected:
        got = expectations.values(cells, expectation)
        known = [value for _, value in got if value is not None]
        holds = all(expectations.holds(value, expectation) for value in known)
        verdict = "not measured" if not known else "holds" if holds else "**fails**"
        if known and len(known) < len(got):
            verdict += ", in part"
        name = f"`{expectation['method']}`" + (f" minus `{expectation['minus']}`" if "minus" in expectation else "")
        turns = {"first": ", first question", "later": ", later questions", "each": ", every question"}
        what = (f"{name}: {', '.join(expectation['tasks'])}{turns.get(expectation.get('turns'), '')} at "
                f"{', '.join(map(str, expectation['lengths']))}")
        figures = "; ".join(f"{budget}: {expectations.show(value, expectation)}" for budget, value in got
                            if value is not None)
        out.append(f"| {what} | {expectations.bound(expectation)} | {figures} | {verdict} |")
    return out


def _notes(cells):
    out = []
    off = [cell for cell in cells if "off" in cell]
    if off:
        out.append("† The server did not apply everything that was asked for:")
        for why in dict.fromkeys(cell["off"]["why"] for cell in off):
            names = dict.fromkeys(f"`{cell['method']}`" for cell in off if cell["off"]["why"] == why)
            out.append(f"- {', '.join(names)}: {why}")
    refused = [cell for cell in cells if "refused" in cell]
    if refused:
        out.append("Refused by the server:")
        for why in dict.fromkeys(cell["refused"]["why"] for cell in refused):
            names = dict.fromkeys(f"`{cell['method']}` at budget {cell['budget']}" for cell in refused
                                  if cell["refused"]["why"] == why)
            out.append(f"- {', '.join(names)}: {why}")
    return out
