// Draws the figures that Python describes in the colours of the page, and updates them.
"use strict";

window.straggler = (() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = {};  // selected view by group or figure name
  const mounted = new Map();  // element: figure

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

  function traces(data, now) {
    return data.map((trace) => {
      const copy = { ...trace };
      for (const key of ["marker", "line", "textfont"]) if (trace[key]) copy[key] = recolour(trace[key], now);
      return copy;
    });
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
      modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    const lines = shown.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    const height = figure.height + (lines > 3 && !figure.name.startsWith("timeline") ? 18 * lines : 0);
    await Plotly.react(place, traces(shown.data, now), layout(shown.layout || {}, now, height, shown.label || figure.name), options);
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

  function choose(figure, label) {
    const key = figure.group || figure.name;
    chosen[key] = label;
    for (const [element, other] of mounted) {
      if ((other.group || other.name) !== key || !other.views) continue;
      for (const button of element.querySelectorAll(".views button")) {
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

  return { show, gallery, forget, theme, themeButton, loadPlotly };
})();
