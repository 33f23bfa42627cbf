"""From a compact description of boards to Grafana's JSON. What is on the boards stands in boards.py."""
import json

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
HEIGHTS = {"stat": 4}
GRAFANA_UNITS = {"seconds": "s", "bytes": "bytes", "bytes/s": "Bps", "ratio": "percentunit", "per second": "reqps",
                 "tokens/s": "short", "tokens": "short", "celsius": "celsius", "cores": "short", "count": "short",
                 "time": "dateTimeAsIso"}


def panel(title, unit, *targets, kind="timeseries", width=8, stacked=False, says="", most=None):
    """targets: (PromQL, legend). kind: timeseries, stat, heatmap, table. width: of 24. most: top of the axis."""
    return {"title": title, "unit": unit, "targets": targets, "kind": kind, "width": width, "stacked": stacked,
            "says": says, "most": most}


def stat(title, unit, expression, says="", width=4):
    return panel(title, unit, (expression, ""), kind="stat", width=width, says=says)


def heatmap(title, unit, histogram, selector, says=""):
    """Observations a second by bucket."""
    expression = f"sum by (le) (rate({histogram}_bucket{{{selector}}}[$__rate_interval]))"
    return panel(title, unit, (expression, "{{le}}"), kind="heatmap", says=says)


def rate(counter, selector, by=""):
    total = f"rate({counter}{{{selector}}}[$__rate_interval])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def quantiles(histogram, selector):
    return [(f"histogram_quantile({q}, sum by (le) (rate({histogram}_bucket{{{selector}}}[$__rate_interval])))", name)
            for q, name in ((.5, "p50"), (.95, "p95"), (.99, "p99"))]


def mean(histogram, selector, by=""):
    return f"{rate(histogram + '_sum', selector, by)} / {rate(histogram + '_count', selector, by)}"


def share(part, rest):
    return f"{part} / ({part} + {rest})"


def _variable(name, label, query):
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": query,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "includeAll": True, "multi": True,
            "allValue": ".*", "current": {"text": "All", "value": "$__all"}}


def _variables():
    info = 'sluice_build_info{model=~"$model"'
    return [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}},
            _variable("model", "Model", "label_values(sluice_build_info, model)"),
            _variable("role", "Role", f"label_values({info}}}, role)"),
            _variable("instance", "Instance", f'label_values({info}, role=~"$role"}}, instance)')]


def _panel_json(number, one, x, y):
    kind = one["kind"]
    out = {"id": number, "title": one["title"], "type": kind, "datasource": DATASOURCE,
           "gridPos": {"x": x, "y": y, "w": one["width"], "h": HEIGHTS.get(kind, 8)},
           "fieldConfig": {"defaults": {"unit": GRAFANA_UNITS[one["unit"]]}, "overrides": []}, "targets": []}
    defaults = out["fieldConfig"]["defaults"]
    if one["says"]:
        out["description"] = one["says"]
    for i, (expression, legend) in enumerate(one["targets"]):
        target = {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend, "datasource": DATASOURCE}
        if kind == "heatmap":
            target["format"] = "heatmap"
        if kind == "table":
            target.update(format="table", instant=True)
        if kind == "stat":
            target["instant"] = True
        out["targets"].append(target)
    if kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"fillOpacity": 30 if one["stacked"] else 8, "lineWidth": 2, "showPoints": "never",
                              "stacking": {"mode": "normal" if one["stacked"] else "none"}}
        out["options"] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                          "tooltip": {"mode": "multi", "sort": "desc"}}
        if one["most"] is not None:
            defaults["max"] = one["most"]
    elif kind == "heatmap":
        out["options"] = {"calculate": False, "yAxis": {"unit": GRAFANA_UNITS[one["unit"]]},
                          "color": {"mode": "scheme", "scheme": "Blues"}, "cellGap": 1}
    elif kind == "stat":
        out["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
    return out


def board_json(uid, title, panels):
    """Panels fill rows of 24 from left to right; a string begins a new section."""
    out, x, y, row_height = [], 0, 0, 0
    for one in panels:
        width, height = (24, 1) if isinstance(one, str) else (one["width"], HEIGHTS.get(one["kind"], 8))
        if x + width > 24 or isinstance(one, str):
            x, y, row_height = 0, y + row_height, 0
        if isinstance(one, str):
            out.append({"id": len(out) + 1, "title": one, "type": "row", "collapsed": False, "panels": [],
                        "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
            y += 1
            continue
        out.append(_panel_json(len(out) + 1, one, x, y))
        x, row_height = x + width, max(row_height, height)
    return json.dumps({
        "uid": uid, "title": f"Sluice: {title}", "tags": ["sluice"], "schemaVersion": 39, "editable": True,
        "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "timezone": "browser",
        "links": [{"type": "dashboards", "title": "Sluice", "tags": ["sluice"], "asDropdown": True,
                   "includeVars": True, "keepTime": True}],
        "templating": {"list": _variables()}, "panels": out}, indent=1) + "\n"
