"""From single samples to cells: the mean score, its interval, and what the answers cost."""

import collections

from lab import intervals


def cells_of(records):
    """A list of dictionaries, one for each task, length, method and budget, in the order in which they first came."""
    groups = collections.OrderedDict()
    seen = set()
    for record in records:
        if record["kind"] != "sample" or record["key"] in seen:
            continue
        seen.add(record["key"])
        key = (record["task"], record["length"], record["definition"], record["budget"])
        groups.setdefault(key, []).append(record)
    return [_cell(group) for group in groups.values()]


def merged(earlier, later):
    """Cells of both; of a cell that both have, the one with more samples."""
    out = collections.OrderedDict()
    for cell in [*earlier, *later]:
        key = (cell["task"], cell["length"], cell["definition"], cell["budget"])
        if key not in out or cell.get("samples", 0) >= out[key].get("samples", 0):
            out[key] = cell
    return list(out.values())


def _cell(group):
    first = group[-1]  # a method may have been renamed since: the last name counts
    cell = {"task": first["task"], "length": first["length"], "method": first["method"],
            "definition": first["definition"], "budget": first["budget"]}
    refused = [record["refused"] for record in group if "refused" in record]
    answered = [record for record in group if "refused" not in record]
    if refused:
        cell["refused"] = {"samples": len(refused), "why": refused[-1]}
    if not answered:
        return cell
    cell |= share([record["score"] for record in answered])
    cell["exact"] = sum(record["score"] >= 1 for record in answered) / len(answered)
    by_turn = [scored_turns(record) for record in answered]
    if len(by_turn[0]) > 1:
        cell["turns"] = [mean(scores) for scores in zip(*by_turn)]
        cell["first_turn"] = share([scores[0] for scores in by_turn])
        cell["later_turns"] = share([mean(scores[1:]) for scores in by_turn])
    if all("kl" in turn for record in answered for turn in record["turns"]):
        turns = [turn for record in answered for turn in record["turns"]]
        low, high = intervals.of_mean([turn["kl"] for turn in turns])
        cell["kl"] = {"mean": mean([turn["kl"] for turn in turns]), "low": low, "high": high,
                      "whole": all(turn["kl_whole"] for turn in turns)}
    cell["cost"] = _cost(answered)
    loss = _loss([turn for record in answered for turn in record["turns"]])
    if loss:
        cell["loss"] = loss
    off = collections.Counter(turn["off"] for record in answered for turn in record["turns"] if turn["off"])
    if off:
        cell["off"] = {"turns": sum(off.values()), "why": off.most_common(1)[0][0]}
    return cell


def _loss(turns):
    """What the servers measured that compression lost, over the turns on which they did; None: on none."""
    measured = [turn for turn in turns if turn.get("top1_tokens") or turn.get("retained_mass")]
    if not measured:
        return None
    masses = [turn["retained_mass"] for turn in measured if turn["retained_mass"]]
    tokens = sum(turn["top1_tokens"] for turn in measured)
    return {"turns": len(measured), "retained_mass": [mean(layer) for layer in zip(*masses)],
            "top1": sum(turn["top1_agreed"] for turn in measured) / tokens if tokens else None}


def scored_turns(record):
    return [turn["score"] for turn in record["turns"] if "score" in turn]


def share(scores):
    low, high = intervals.wilson(mean(scores), len(scores))
    return {"samples": len(scores), "score": mean(scores), "low": low, "high": high}


def mean(values):
    return sum(values) / len(values)


def _cost(answered):
    """Means over samples, of all turns together; of tokens, of the last turn, whose prompt is the longest."""
    turns = [record["turns"] for record in answered]

    def total(field):
        return mean([sum(turn[field] for turn in of) for of in turns])

    def last(field):
        return mean([of[-1][field] for of in turns])

    full = total("kv_bytes_full")
    return {"prompt_tokens": last("prompt_tokens"), "kept_tokens": last("kept_tokens"),
            "read_tokens": last("read_tokens"), "wire_bytes": total("wire_bytes"), "kv_bytes_full": full,
            "wire_share": total("wire_bytes") / full if full else 0.0, "prefill_seconds": total("prefill_seconds"),
            "total_seconds": total("total_seconds")}
