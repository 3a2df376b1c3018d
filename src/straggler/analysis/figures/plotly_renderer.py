"""Figures on pages: render a FigureSpec as plotly's JSON."""

import math
from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np

from straggler.analysis.figures import description as d
from straggler.analysis.figures.description import round_for_json
from straggler.running.atomic_files import replace_atomically

COLOUR_SCALE = "Cividis"  # made for colour-blind readers
GAP = 0.14  # between two panels, as a share of the figure
LARGEST_LABELLED_TABLE = 400  # cells that carry their number
Trace = dict[str, Any]


def render_plotly(spec: d.FigureSpec) -> dict[str, Any]:
    """Return the values that `draw.js` needs: words, and data and layout of the figure or of its views."""
    note = f"{spec.note} {spec.caption}".strip()
    words = {"name": spec.name, "title": spec.title, "note": note, "group": spec.group, "height": spec.height}
    if spec.views:
        views = [{"label": label, **render_panels(spec, panels)} for label, panels in spec.views.items()]
        return words | {"views": views}
    return words | render_panels(spec, spec.panels)


def write_page(spec: d.FigureSpec, path: Path) -> Path:
    """Write a figure as an HTML page that works without a network."""
    from plotly import graph_objects as go  # takes half a second to import

    drawn = render_panels(spec, spec.choose_panels())
    page = go.Figure({"data": drawn["data"], "layout": drawn["layout"] | {"title": {"text": spec.title}}})
    page.update_layout(legend={"orientation": "h", "y": -0.15})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(path) as temporary:
        page.write_html(temporary, config={"displaylogo": False, "showSendToCloud": False})
    return path


def render_panels(spec: d.FigureSpec, panels: Sequence[d.Panel]) -> dict[str, Any]:
    """Return data and layout of panels in a grid."""
    places, rows, columns = spec.place_panels(panels)
    data: list[Trace] = []
    layout: dict[str, Any] = {}
    seen: set[str] = set()  # labels that are in the legend already
    for place, ((row, column), panel) in enumerate(zip(places, panels, strict=True)):
        number = str(place + 1) if place else ""
        across = [divide_unit(columns, column)[0], divide_unit(columns, column + panel.span - 1)[1]]
        up = divide_unit(rows, rows - 1 - row)
        for mark in panel.marks:
            for trace in build_traces(mark, panel):
                add_to_legend(trace, seen)
                data.append(trace | address_axes(panel, number))
            add_to_layout(layout, mark, number)
        layout |= format_axes(panel, number, across, up) if len(panels) > 1 else format_axes(panel, number)
    return {"data": data, "layout": layout}


def divide_unit(parts: int, part: int) -> list[float]:
    width = (1 - GAP * (parts - 1)) / parts
    return [round(part * (width + GAP), 4), round(part * (width + GAP) + width, 4)]


def address_axes(panel: d.Panel, number: str) -> dict[str, str]:
    if panel.z:
        return {"scene": f"scene{number}"}
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"} if number else {}


def add_to_legend(trace: Trace, seen: set[str]) -> None:
    """Show every label once."""
    label = trace.get("name", "")
    trace["showlegend"] = bool(label) and label not in seen and trace.get("showlegend", True)
    if trace["showlegend"]:
        seen.add(label)


def format_axes(
    panel: d.Panel, number: str, across: Sequence[float] = (), up: Sequence[float] = ()
) -> dict[str, Any]:
    if panel.z:
        axes = {"xaxis": format_axis(panel.x), "yaxis": format_axis(panel.y), "zaxis": format_axis(panel.z)}
        camera = {"eye": {"x": 1.6, "y": 1.7, "z": 1.1}, "center": {"z": -0.2}}
        place = {"domain": {"x": list(across), "y": list(up)}} if across else {}
        return {f"scene{number}": axes | {"aspectmode": "cube", "camera": camera} | place}
    x, y = format_axis(panel.x), format_axis(panel.y)
    if across:
        x |= {"domain": list(across), "anchor": f"y{number}"}
        y |= {"domain": list(up), "anchor": f"x{number}"}
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def format_axis(axis: d.Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": axis.label}}
    if axis.scale != "linear":
        found["type"] = axis.scale if axis.scale == "category" else "log"
    if axis.scale == "log2":
        found["dtick"] = math.log10(2)
    if axis.low is not None or axis.high is not None:
        ends = [axis.low, axis.high]
        if axis.scale.startswith("log"):
            ends = [None if end is None else math.log10(end) for end in ends]
        found["range"] = ends[::-1] if axis.reverse else ends
    elif axis.reverse:
        found["autorange"] = "reversed"
    if len(axis.ticks):
        found["tickvals"] = round_for_json(axis.ticks)
    if axis.tick_labels:
        found["ticktext"] = list(axis.tick_labels)
    return found if axis.grid else found | {"showgrid": False}


def escape_text(text: str) -> str:
    """Escape text for tooltips, in which plotly interprets some HTML and %{…}."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("%", "&#37;")


def add_to_layout(layout: dict[str, Any], mark: d.Mark, number: str) -> None:
    """Add the parts that plotly does not draw as traces: reference lines and words at fixed places."""
    if isinstance(mark, d.HLine | d.VLine):
        flat = isinstance(mark, d.HLine)
        value = mark.y if isinstance(mark, d.HLine) else mark.x
        along, fixed = ("x", "y") if flat else ("y", "x")
        line = {"color": d.choose_colour(mark.colour), "width": 1, "dash": mark.dash}
        place = {f"{along}ref": f"{along}{number} domain", f"{fixed}ref": f"{fixed}{number}"}
        ends = {f"{along}0": 0, f"{along}1": 1, f"{fixed}0": value, f"{fixed}1": value}
        layout.setdefault("shapes", []).append({"type": "line", "line": line} | place | ends)
        if mark.text:
            words = {"text": mark.text, "showarrow": False, along: 1, fixed: value, "yanchor": "bottom"}
            layout.setdefault("annotations", []).append(words | place)
    elif isinstance(mark, d.Text) and mark.relative:
        for x, y, text in zip(mark.x, mark.y, mark.text, strict=True):
            place = {"xref": f"x{number} domain", "yref": f"y{number} domain", "x": x, "y": y}
            words = {"text": text.replace("\n", "<br>"), "showarrow": False, "xanchor": mark.align}
            layout.setdefault("annotations", []).append(place | words)
    elif isinstance(mark, d.Spans):
        layout |= {"barmode": "overlay", "bargap": 0.2}


@singledispatch
def build_traces(mark: d.Mark, panel: d.Panel) -> list[Trace]:
    """Return the traces of one mark; each kind with data has its function below."""
    return []


def format_error_bars(error: d.Errors | None) -> dict[str, Any]:
    below, above = error or ((), ())
    look = {"symmetric": False, "thickness": 1, "width": 2}
    return look | {"arrayminus": round_for_json(below), "array": round_for_json(above)}


@build_traces.register
def build_line(mark: d.Line, panel: d.Panel) -> list[Trace]:
    colour = d.choose_colour(mark.colour)
    line: dict[str, Any] = {"color": colour, "width": max(1.0, 1.3 * mark.width)}
    line["dash"] = mark.dash or d.choose_dash(mark.colour)
    if mark.step:
        line["shape"] = {"after": "hv", "middle": "hvh"}[mark.step]
    place = {"type": "scatter", "x": round_for_json(mark.x), "legendgroup": mark.group or mark.label}
    hover = f"%{{x:.5~g}}: %{{y:.4~g}}<extra>{escape_text(mark.label or mark.group)}</extra>"
    pointed = mark.marker or len(mark.x) == 1
    trace: Trace = place | {"mode": "lines+markers" if pointed else "lines", "name": mark.label}
    trace |= {"y": round_for_json(mark.y), "line": line, "marker": {"size": 5}, "hovertemplate": hover}
    trace |= {"error_y": format_error_bars(mark.error)} if mark.error else {}
    trace |= {"fill": "tozeroy"} if mark.filled else {}
    if mark.band is None:
        return [trace]
    edge = place | {"mode": "lines", "line": {"width": 0, "color": colour}, "hoverinfo": "skip"}
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    low, high = (edge | {"y": round_for_json(values)} for values in mark.band)
    return [low, high | {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.2)"}, trace]


@build_traces.register
def build_scatter(mark: d.Scatter, panel: d.Panel) -> list[Trace]:
    shape, colour = mark.marker or d.choose_marker(mark.colour), d.choose_colour(mark.colour)
    marker: dict[str, Any] = {"size": 1.5 * mark.size, "color": colour, "symbol": shape}
    if mark.fill == "none":
        marker["symbol"] = f"{shape}-open"
    elif mark.fill:
        marker |= {"color": mark.fill, "line": {"color": colour, "width": 1}}
    trace: Trace = {"type": "scatter", "mode": "markers", "name": mark.label, "marker": marker}
    trace |= {"x": round_for_json(mark.x), "y": round_for_json(mark.y)}
    trace |= {"error_x": format_error_bars(mark.x_error)} if mark.x_error else {}
    trace |= {"error_y": format_error_bars(mark.error)} if mark.error else {}
    hover = {"text": list(mark.hover), "hovertemplate": "%{text}<extra></extra>"}
    return [trace | (hover if mark.hover else {})]


@build_traces.register
def build_bars(mark: d.Bars, panel: d.Panel) -> list[Trace]:
    marker: dict[str, Any] = {"color": d.choose_colour(mark.colour)}
    if shape := d.choose_hatch(mark.colour):
        marker["pattern"] = {"shape": shape, "size": 6, "fgcolor": "paper", "fillmode": "overlay"}
    trace: Trace = {"type": "bar", "name": mark.label, "marker": marker}
    trace |= {"x": round_for_json(mark.x), "y": round_for_json(mark.y)}
    trace |= {"error_y": format_error_bars(mark.error)} if mark.error else {}
    detail = "<br>%{customdata}" if mark.hover else ""
    unit = " %" if "%" in panel.y.label else ""
    trace["hovertemplate"] = f"{escape_text(panel.x.label)} %{{x}}: %{{y:.4~g}}{unit}{detail}<extra></extra>"
    return [trace | ({"customdata": list(mark.hover)} if mark.hover else {})]


@build_traces.register
def build_spans(mark: d.Spans, panel: d.Panel) -> list[Trace]:
    """Return a trace of horizontal bars.

    In a tooltip of bars with `base`, x is the end of the bar, so the length is in the custom data.
    """
    marker: dict[str, Any] = {"color": d.choose_colour(mark.colour), "line": {"width": 1, "color": "paper"}}
    if mark.hatch:
        marker["pattern"] = {"shape": mark.hatch, "size": 6, "fgcolor": "paper", "fillmode": "overlay"}
    lengths = round_for_json(np.asarray(mark.ends, dtype=float) - np.asarray(mark.starts, dtype=float))
    details = mark.hover or [""] * len(lengths)
    hover = (
        f"{panel.y.label} %{{y}} {mark.label}<br>%{{base:.5~g}} to %{{x:.5~g}} s (%{{customdata[0]:.4~g}} s)"
    )
    trace: Trace = {"type": "bar", "orientation": "h", "name": mark.label, "marker": marker}
    trace |= {"y": round_for_json(mark.rows), "base": round_for_json(mark.starts), "x": lengths}
    trace |= {"customdata": [list(pair) for pair in zip(lengths, details, strict=True)]}
    return [trace | {"opacity": mark.opacity, "hovertemplate": hover + "%{customdata[1]}<extra></extra>"}]


@build_traces.register
def build_heatmap(mark: d.Heatmap, panel: d.Panel) -> list[Trace]:
    trace: Trace = {"type": "heatmap", "z": [round_for_json(row) for row in mark.values]}
    trace |= {"x": list(map(str, mark.columns)), "y": list(map(str, mark.rows)), "colorscale": COLOUR_SCALE}
    trace |= {"zmin": mark.low, "zmax": mark.high, "colorbar": {"title": {"text": mark.unit}}}
    if len(mark.text) and mark.values.size <= LARGEST_LABELLED_TABLE:
        words = [[word.replace("\n", "<br>") for word in row] for row in mark.text]
        trace |= {"text": words, "texttemplate": "%{text}"}
    return [trace | {"hovertemplate": f"%{{y}}, %{{x}}: %{{z:.4~g}} {mark.unit}<extra></extra>"}]


@build_traces.register
def build_surface(mark: d.Surface, panel: d.Panel) -> list[Trace]:
    bar: dict[str, Any] = {"title": {"text": mark.unit}, "len": 0.7}
    bar |= {"tickvals": list(mark.ticks), "ticktext": list(mark.tick_labels)}
    trace: Trace = {"x": round_for_json(mark.x), "y": round_for_json(mark.y), "colorscale": COLOUR_SCALE}
    trace |= {"z": [round_for_json(row) for row in mark.heights], "hoverinfo": "skip"}
    if panel.z is None:
        return [trace | {"type": "contour", "ncontours": len(mark.levels), "showscale": False}]
    return [trace | {"type": "surface", "opacity": 0.8, "colorbar": bar}]


@build_traces.register
def build_trajectory(mark: d.Trajectory, panel: d.Panel) -> list[Trace]:
    colour = d.choose_colour(mark.colour)
    trace: Trace = {"type": "scatter", "mode": "lines+markers", "name": mark.label, "legendgroup": mark.label}
    trace |= {"x": round_for_json(mark.x), "y": round_for_json(mark.y), "line": {"width": 4, "color": colour}}
    trace["marker"] = {"size": 4, "color": colour, "line": {"color": "#ffffff", "width": 1}}
    if mark.heights is not None:
        trace |= {"type": "scatter3d", "z": round_for_json(mark.heights)}
    return [trace | {"text": list(mark.hover), "hovertemplate": "%{text}<extra></extra>"}]


@build_traces.register
def build_text(mark: d.Text, panel: d.Panel) -> list[Trace]:
    if mark.relative:
        return []
    sides = {"left": "middle right", "center": "middle center", "right": "middle left"}
    font = {"size": mark.size + 1, "color": list(mark.colours) or "#333333"}
    place = {"x": round_for_json(mark.x), "y": round_for_json(mark.y), "text": list(mark.text)}
    look = {"mode": "text", "textposition": sides[mark.align], "textfont": font, "hoverinfo": "skip"}
    return [{"type": "scatter"} | place | look]
