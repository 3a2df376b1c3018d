// Draws the figures that Python describes in the colours of the page, and updates them.
"use strict";

window.straggler = (() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = {};  // selected view by group or figure name
  const mounted = new Map();  // element: figure
  const flipped = new Set();  // names of figures whose vertical axis has the other scale
  const SMOOTH = ["curves", "staleness-time", "norms", "gap"];  // groups or names of figures with noisy lines
  let smoothing = 0;  // 0: none, towards 1: strong

  function theme() {
    return root.dataset.theme || (dark.matches ? "dark" : "light");
  }

  function setTheme(name) {
    root.dataset.theme = name;
    redraw();
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  // The button names the theme that a click selects. The choice is stored if the browser allows it.
  function themeButton(button) {
    const label = () => {
      const next = theme() === "dark" ? "light" : "dark";
      button.textContent = next === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Switch to the ${next} theme`);
    };
    try {
      const stored = localStorage.getItem("straggler-theme");
      if (stored === "dark" || stored === "light") root.dataset.theme = stored;
    } catch { /* pages opened from disk may have no storage */ }
    button.addEventListener("click", () => {
      setTheme(theme() === "dark" ? "light" : "dark");
      try { localStorage.setItem("straggler-theme", theme()); } catch { /* see above */ }
    });
    document.addEventListener("themechange", label);
    dark.addEventListener("change", () => { redraw(); label(); });
    label();
  }

  function colours() {
    const style = getComputedStyle(document.body);
    const read = (name) => style.getPropertyValue(name).trim();
    return { ink: read("--ink"), paper: read("--card"), grid: read("--line") };
  }

  // Replace "paper" by the background colour, and black by the text colour (black is invisible in dark mode).
  function recolour(value, now) {
    if (Array.isArray(value)) return value.map((item) => recolour(item, now));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, recolour(item, now)]));
    }
    if (value === "paper") return now.paper;
    return value === "#000000" ? now.ink : value;
  }

  function traces(figure, data, now) {
    const smooth = smoothing && (SMOOTH.includes(figure.group) || SMOOTH.includes(figure.name));
    return data.map((trace) => {
      const copy = { ...trace };
      for (const key of ["marker", "line", "textfont"]) if (trace[key]) copy[key] = recolour(trace[key], now);
      if (smooth && trace.type === "scatter" && (trace.mode || "").includes("lines") && trace.fill !== "tozeroy") {
        copy.y = average(trace.y);
      }
      return copy;
    });
  }

  // Exponential moving average without bias towards the first value.
  function average(values) {
    let sum = 0;
    let weight = 0;
    return values.map((value) => {
      if (typeof value !== "number") return value;
      sum = smoothing * sum + (1 - smoothing) * value;
      weight = smoothing * weight + (1 - smoothing);
      return sum / weight;
    });
  }

  const isVertical = (key) => /^yaxis\d*$/.test(key);

  // Whether the vertical axes can be switched between a linear and a logarithmic scale.
  function canFlip(shown) {
    const lines = shown.data.some((trace) => trace.type === "scatter" && (trace.mode || "").includes("lines"));
    const { scene, yaxis } = shown.layout || {};
    return lines && !scene && (yaxis || {}).visible !== false;
  }

  function flip(merged) {
    for (const key of Object.keys(merged).filter(isVertical)) {
      const { range, dtick, tickvals, ticktext, ...axis } = merged[key];
      merged[key] = { ...axis, type: axis.type === "log" ? "linear" : "log", uirevision: "flipped" };
    }
  }

  function layout(described, now, height, label) {
    const axis = { gridcolor: now.grid, linecolor: now.grid, zerolinecolor: now.grid, automargin: true };
    const merged = {
      height,
      font: { family: "system-ui, sans-serif", size: 13, color: now.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 55, r: 15, t: 10, b: 45 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hovermode: "closest",
      ...described,
      uirevision: label,  // keep the zoom on updates, reset it when the view changes
      xaxis: { ...axis, ...described.xaxis },
      yaxis: { ...axis, ...described.yaxis },
    };
    for (const key of Object.keys(merged)) if (/^[xy]axis\d+$/.test(key)) merged[key] = { ...axis, ...merged[key] };
    if (described.scene) {
      merged.scene = { ...described.scene };
      for (const key of ["xaxis", "yaxis", "zaxis"]) {
        merged.scene[key] = { ...described.scene[key], gridcolor: now.grid, color: now.ink };
      }
    }
    return merged;
  }

  function view(figure) {
    if (!figure.views) return figure;
    const wanted = chosen[figure.group || figure.name];
    return figure.views.find((one) => one.label === wanted) || figure.views[0];
  }

  // Load plotly when the first figure is drawn (it is large); reports contain it.
  let loading = null;
  function loadPlotly() {
    if (window.Plotly) return Promise.resolve();
    loading = loading || new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = "/static/plotly.js";
      script.onload = done;
      script.onerror = failed;
      document.head.append(script);
    });
    return loading;
  }

  async function plot(element) {
    await loadPlotly();
    const figure = mounted.get(element);
    if (!figure) return;
    const now = colours();
    const shown = view(figure);
    const place = element.querySelector(".plot");
    const wide = place.clientWidth > 420;  // on a small screen the tools would cover the legend
    const options = { displaylogo: false, displayModeBar: wide ? "hover" : false,
      showSendToCloud: false,  // never offer to upload data
      toImageButtonOptions: { format: "svg", filename: `straggler-${figure.name}` },
      modeBarButtonsToAdd: [{ name: "csv", title: "Download the data as CSV", icon: Plotly.Icons.disk, click: saveTable }],
      modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    const lines = shown.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    const height = figure.height + (lines > 3 && !figure.name.startsWith("timeline") ? 18 * lines : 0);
    const drawn = layout(shown.layout || {}, now, height, shown.label || figure.name);
    if (flipped.has(figure.name) && canFlip(shown)) flip(drawn);
    await Plotly.react(place, traces(figure, shown.data, now), drawn, options);
    noteLostZeros(element, place);
    connect(place);
  }

  // A logarithmic axis has no place for 0: say so.
  function noteLostZeros(element, place) {
    const log = Object.keys(place.layout).some((key) => isVertical(key) && place.layout[key].type === "log");
    const lost = log && place.data.some((trace) => (trace.type || "scatter") === "scatter" && trace.y && [...trace.y].some((value) => typeof value === "number" && value <= 0));
    const note = element.querySelector(".zeros");
    if (note) note.hidden = !lost;
  }

  function saveTable(place) {
    const quote = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const lines = ["series,x,y"];
    for (const trace of place.data) {
      if (!Array.isArray(trace.x) || !Array.isArray(trace.y) || trace.hoverinfo === "skip") continue;
      trace.x.forEach((x, position) => lines.push([trace.name || trace.legendgroup, x, trace.y[position]].map(quote).join(",")));
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/csv" }));
    link.download = `straggler-${place.parentElement.dataset.figure || "figure"}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Figures with the same horizontal axis zoom together, and the pointer in one is shown in the others.
  const axisTitle = (place) => ((place.layout && place.layout.xaxis && place.layout.xaxis.title) || {}).text;

  function partners(place) {
    const title = axisTitle(place);
    const places = [...mounted.keys()].map((element) => element.querySelector(".plot"));
    return places.filter((other) => title && other && other !== place && other._fullLayout && axisTitle(other) === title);
  }

  let linking = false;
  function connect(place) {
    if (place.dataset.connected) return;
    place.dataset.connected = "yes";
    place.on("plotly_relayout", async (change) => {
      const ends = ["xaxis.range[0]", "xaxis.range[1]"];
      const zoomed = ends.every((key) => key in change);
      if (linking || (!zoomed && !change["xaxis.autorange"])) return;
      linking = true;
      const same = zoomed ? Object.fromEntries(ends.map((key) => [key, change[key]])) : { "xaxis.autorange": true };
      try {
        await Promise.all(partners(place).map((other) => Plotly.relayout(other, same)));
      } finally {
        linking = false;
      }
    });
    place.addEventListener("mousemove", (event) => {
      const xaxis = place._fullLayout && place._fullLayout.xaxis;
      if (!xaxis || !axisTitle(place)) return;
      const at = event.clientX - place.getBoundingClientRect().left - xaxis._offset;
      const x = at >= 0 && at <= xaxis._length ? xaxis.p2d(at) : null;
      if (typeof x !== "number") hideCrosshairs();
      else for (const other of partners(place)) showCrosshair(other, x);
    });
    place.addEventListener("mouseleave", hideCrosshairs);
  }

  function hideCrosshairs() {
    for (const line of document.querySelectorAll(".crosshair")) line.remove();
  }

  function showCrosshair(place, x) {
    const { xaxis, _size: size } = place._fullLayout;
    let line = place.querySelector(".crosshair");
    if (!line) {
      line = document.createElement("div");
      line.className = "crosshair";
      place.append(line);
    }
    const at = xaxis.d2p(x);
    line.hidden = at < 0 || at > xaxis._length;
    line.style.left = `${xaxis._offset + at}px`;
    line.style.top = `${size.t}px`;
    line.style.height = `${size.h}px`;
  }

  function switcher(element, figure) {
    const group = document.createElement("div");
    group.className = "views";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", `${figure.title}: view`);
    for (const { label } of figure.views) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.setAttribute("aria-pressed", String(label === view(figure).label));
      button.addEventListener("click", () => choose(figure, label));
      group.append(button);
    }
    return group;
  }

  function scaleSwitch(element, figure) {
    const group = document.createElement("div");
    group.className = "views scale";
    const button = document.createElement("button");
    const isLog = () => ((view(figure).layout || {}).yaxis || {}).type === "log";
    const label = () => {
      const log = isLog() !== flipped.has(figure.name);
      button.setAttribute("aria-pressed", String(log));
    };
    button.type = "button";
    button.textContent = "log";
    button.setAttribute("aria-label", `${figure.title}: logarithmic vertical axis`);
    button.addEventListener("click", () => {
      if (!flipped.delete(figure.name)) flipped.add(figure.name);
      label();
      plot(element);
    });
    label();
    group.append(button);
    const note = document.createElement("p");
    note.className = "muted zeros";
    note.textContent = "Values of 0 are not shown: a logarithmic axis has no place for them.";
    note.hidden = true;
    return [group, note];
  }

  function choose(figure, label) {
    const key = figure.group || figure.name;
    chosen[key] = label;
    for (const [element, other] of mounted) {
      if ((other.group || other.name) !== key || !other.views) continue;
      for (const button of element.querySelectorAll(".views:not(.scale) button")) {
        button.setAttribute("aria-pressed", String(button.textContent === view(other).label));
      }
      plot(element);
    }
  }

  function build(element, figure) {
    const caption = document.createElement("figcaption");
    const heading = document.createElement("h3");
    heading.textContent = figure.title;
    const note = document.createElement("p");
    note.className = "muted";
    note.textContent = figure.note;
    caption.append(heading, note);
    const place = document.createElement("div");
    place.className = "plot";
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${figure.title}. ${figure.note}`);
    element.replaceChildren(caption);
    if (figure.views && figure.views.length > 1) element.append(switcher(element, figure));
    if (canFlip(view(figure))) element.append(...scaleSwitch(element, figure));
    element.append(place);
    widths.observe(place);
  }

  // Fit a figure to its place when the width changes or it becomes visible.
  const widths = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const drawn = target._fullLayout && target._fullLayout.width;
      if (drawn && contentRect.width > 0 && Math.abs(drawn - contentRect.width) > 1) Plotly.Plots.resize(target);
    }
  });

  // A figure with the same title, note and views keeps its elements; only the data are updated.
  const shape = (figure) => JSON.stringify([figure.title, figure.note, (figure.views || []).map((v) => v.label)]);

  function show(element, figure) {
    const before = mounted.get(element);
    mounted.set(element, figure);
    if (!before || shape(before) !== shape(figure)) build(element, figure);
    return plot(element);
  }

  // Show figures in a container: update those with the same name, remove those that are gone.
  function gallery(container, figures) {
    const there = new Map([...container.children].map((child) => [child.dataset.figure, child]));
    const elements = figures.map((figure) => {
      const element = there.get(figure.name) || document.createElement("figure");
      there.delete(figure.name);
      element.className = "card";
      element.dataset.figure = figure.name;
      return element;
    });
    for (const element of there.values()) forget(element);
    // Place all elements before drawing, because a figure takes the width of its place.
    elements.forEach((element, position) => {
      if (container.children[position] !== element) container.insertBefore(element, container.children[position] || null);
    });
    elements.forEach((element, position) => show(element, figures[position]));
  }

  function forget(element) {
    const place = element.querySelector(".plot");
    if (place) widths.unobserve(place);
    if (place && window.Plotly) Plotly.purge(place);
    mounted.delete(element);
    element.remove();
  }

  function redraw() {
    for (const element of mounted.keys()) plot(element);
  }

  // Print in the light theme.
  let before = null;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme || ""; setTheme("light"); });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    redraw();
  });

  function smooth(strength) {
    smoothing = strength;
    redraw();
  }

  return { smooth, show, gallery, forget, theme, themeButton, loadPlotly };
})();
