"""The figures of a run: accuracy against budget, accuracy against bytes on the wire, needles by length and depth,
divergence from full KV against budget."""

import math
import os

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.colors import to_rgba  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

from lab import tasks  # noqa: E402

# Okabe and Ito's colours, without the yellow that fades on white; lines and markers tell methods apart without colour.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5D4E8C", "#7A7A7A"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<"]
LINES = ["-", "--", "-.", (0, (1, 1.2))]
STYLE = {
    "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "legend.fontsize": 7.5, "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#E3E3E3", "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.3,
    "lines.markersize": 4, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "lab",
    "savefig.bbox": "tight", "savefig.dpi": 300, "legend.frameon": False,
}
DEPTH_BINS = 10
ASIDE = 0.32  # doublings of the budget over which the points of one budget are spread
CELL = 0.42  # inches of a heat map's square


def draw(cells, records, folder, formats):
    """Writes all figures that the results allow; returns their names without endings."""
    os.makedirs(folder, exist_ok=True)
    cells = [cell for cell in cells if "score" in cell]
    names = []
    with plt.rc_context(STYLE):
        styles = _styles(cells)
        for length in sorted({cell["length"] for cell in cells}):
            here = [cell for cell in cells if cell["length"] == length]
            for name, panel, label in (("budget", _against_budget, "budget (rows read a step)"),
                                       ("wire", _against_wire, "KV on the wire (% of all KV)")):
                names += _save(_panels(here, styles, panel, label), folder, f"{name}_{length}", formats)
            told = [cell for cell in here if "kl" in cell and cell["budget"] is not None]
            figure = _panels(told, styles, _divergence, "budget (rows read a step)", "KL to full KV (nats a step)")
            names += _save(figure, folder, f"kl_{length}", formats)
        for task, budget in _heat_maps(cells, records):
            names += _save(_heat_map(records, task, budget), folder,
                           f"depth_{task}" + (f"_{budget}" if budget else ""), formats)
    return names


def _save(figure, folder, name, formats):
    if figure is None:
        return []
    for ending in formats:
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)  # the same bytes every time
        figure.savefig(os.path.join(folder, f"{name}.{ending}"), metadata=metadata)
    plt.close(figure)
    return [name]


def _styles(cells):
    """A method looks the same in all figures."""
    methods = list(dict.fromkeys(cell["method"] for cell in cells if cell["budget"] is not None))
    return {method: {"color": COLOURS[i % len(COLOURS)],
                     "marker": MARKERS[(i + 3 * (i // len(COLOURS))) % len(MARKERS)],
                     "linestyle": LINES[(i // len(COLOURS) + i) % len(LINES)]} for i, method in enumerate(methods)}


def _panels(cells, styles, draw_panel, x_label, y_label="score (%)"):
    """Small multiples, one a task, and one legend for all."""
    shown = [task for task in tasks.TASKS if any(c["task"] == task and c["budget"] is not None for c in cells)]
    if not shown:
        return None
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    handles = _legend(cells, styles)
    width = max(3.4, 2.35 * columns + 0.3)
    legend_columns = min(len(handles), int(width / 1.15))
    height = 1.9 * rows + 0.3 + 0.17 * math.ceil(len(handles) / legend_columns)
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), sharey=True, squeeze=False,
                                layout="constrained")
    for axis in axes.flat[len(shown):]:
        axis.set_visible(False)
    for axis, task in zip(axes.flat, shown):
        draw_panel(axis, [cell for cell in cells if cell["task"] == task], styles)
        axis.set_title(task, loc="left", family="monospace")
    figure.supxlabel(x_label, fontsize=8)
    figure.supylabel(y_label, fontsize=8)
    figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns, handlelength=2.6,
                  columnspacing=1.2)
    return figure


def _legend(cells, styles):
    handles = [Line2D([], [], **styles[m], label=m) for m in styles if any(cell["method"] == m for cell in cells)]
    whole = next((cell["method"] for cell in cells if cell["budget"] is None), None)
    if whole:
        handles.insert(0, Line2D([], [], color="black", linewidth=1, linestyle=(0, (5, 2)), label=whole))
    return handles


def _scores(axis, cells):
    """The axis of scores, and full KV's."""
    axis.set_ylim(-3, 103)
    axis.set_yticks(range(0, 101, 25))
    for cell in cells:
        if cell["budget"] is None:
            axis.axhline(100 * cell["score"], color="black", linewidth=1, linestyle=(0, (5, 2)), zorder=1)


def _against_budget(axis, cells, styles):
    _scores(axis, cells)
    lines = _lines(cells)
    for i, (method, points) in enumerate(lines):
        # Methods that agree would hide each other: each stands a little aside.
        aside = 2 ** (ASIDE * (i / max(1, len(lines) - 1) - 0.5))
        x = [point["budget"] * aside for point in points]
        y, low, high = (np.array([100 * point[key] for point in points]) for key in ("score", "low", "high"))
        axis.errorbar(x, y, yerr=(y - low, high - y), elinewidth=0.7, capsize=1.6, capthick=0.7,
                      ecolor=to_rgba(styles[method]["color"], 0.5), **styles[method])
    _budgets(axis, cells)


def _divergence(axis, cells, styles):
    for method, points in _lines(cells):
        shown = [point for point in points if point["kl"]["mean"] > 0]  # none at all is below any scale
        axis.plot([point["budget"] for point in shown], [point["kl"]["mean"] for point in shown], **styles[method])
    axis.set_yscale("log")
    _budgets(axis, cells)


def _budgets(axis, cells):
    budgets = sorted({cell["budget"] for cell in cells if cell["budget"] is not None})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(budgets))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def _against_wire(axis, cells, styles):
    _scores(axis, cells)
    for method, points in _lines(cells):
        x = [100 * point["cost"]["wire_share"] for point in points]
        axis.plot(x, [100 * point["score"] for point in points], **styles[method])
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50, 100]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _lines(cells):
    """(method, its cells by budget)."""
    methods = dict.fromkeys(cell["method"] for cell in cells if cell["budget"] is not None)
    return [(m, sorted((c for c in cells if c["method"] == m), key=lambda c: c["budget"])) for m in methods]


def _heat_maps(cells, records):
    """(task, budget) of needles that lie at a depth, measured at two lengths or more."""
    of_depth = {r["task"] for r in records if r["kind"] == "sample" and r.get("depth") is not None}
    out = []
    for task in tasks.TASKS:
        here = [cell for cell in cells if cell["task"] == task]
        if task in of_depth and task not in tasks.CONVERSATIONS and len({cell["length"] for cell in here}) > 1:
            out += [(task, budget) for budget in sorted({cell["budget"] for cell in here if cell["budget"]}) or [None]]
    return out


def _heat_map(records, task, budget):
    """A panel a method: lengths from left to right, depths from top to bottom, the mean score as colour and number."""
    here = [r for r in records if r["kind"] == "sample" and r["task"] == task and "score" in r
            and r["budget"] in (budget, None)]
    methods = list(dict.fromkeys(r["method"] for r in here))
    lengths = sorted({r["length"] for r in here})
    columns = min(len(methods), 4)
    rows = math.ceil(len(methods) / columns)
    figure, axes = plt.subplots(rows, columns, squeeze=False, sharex=True, sharey=True, layout="constrained", figsize=(
        max(CELL * len(lengths) + 0.35, 1.4) * columns + 1.1, (0.6 * CELL * DEPTH_BINS + 0.35) * rows + 0.5))
    image = None
    for axis in axes.flat[len(methods):]:
        axis.set_visible(False)
    for axis, method in zip(axes.flat, methods):
        image = _heat(axis, [r for r in here if r["method"] == method], lengths)
        axis.set_title(method, loc="left", family="monospace")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label="score (%)")
    bar.outline.set_visible(False)
    figure.supxlabel("prompt length (tokens)", fontsize=8)
    figure.supylabel("depth of the needle (%)", fontsize=8)
    figure.suptitle(f"{task}" + (f", budget {budget}" if budget else ""), fontsize=8.5)
    return figure


def _heat(axis, records, lengths):
    sums, counts = np.zeros((DEPTH_BINS, len(lengths))), np.zeros((DEPTH_BINS, len(lengths)))
    for record in records:
        row = min(int(record["depth"] * DEPTH_BINS), DEPTH_BINS - 1)
        sums[row, lengths.index(record["length"])] += 100 * record["score"]
        counts[row, lengths.index(record["length"])] += 1
    means = np.ma.masked_invalid(np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0))
    image = axis.imshow(means, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for (row, column), value in np.ndenumerate(means.filled(np.nan)):
        if not np.isnan(value):
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=6,
                      color="white" if value < 55 else "black")
    axis.set_xticks(range(len(lengths)), [f"{n // 1024}K" if n % 1024 == 0 else str(n) for n in lengths])
    edges = [100 * i // DEPTH_BINS for i in range(DEPTH_BINS + 1)]
    axis.set_yticks(range(DEPTH_BINS), [f"{low}-{high}" for low, high in zip(edges, edges[1:])])
    axis.grid(False)
    axis.tick_params(length=0)
    return image
