// Pictures: takes the figures that Python describes, gives them the page's colours, and keeps them up to date.
"use strict";

window.straggler = (() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = {};  // view by group, or by figure
  const mounted = new Map();  // element: figure

  function theme() {
    return root.dataset.theme || (dark.matches ? "dark" : "light");
  }

  function setTheme(name) {
    root.dataset.theme = name;
    redraw();
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  // The switch says what a click gives; the choice is kept where the page may keep things.
  function themeButton(button) {
    const label = () => {
      const next = theme() === "dark" ? "light" : "dark";
      button.textContent = next === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Switch to the ${next} theme`);
    };
    try {
      const kept = localStorage.getItem("straggler-theme");
      if (kept === "dark" || kept === "light") root.dataset.theme = kept;
    } catch { /* a page from disk may not be allowed to */ }
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

  // "paper" stands for the background; black is invisible on dark.
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

  function layout(given, now, height) {
    const axis = { gridcolor: now.grid, linecolor: now.grid, zerolinecolor: now.grid, automargin: true };
    const merged = {
      height,
      font: { family: "system-ui, sans-serif", size: 13, color: now.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 55, r: 15, t: 10, b: 45 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hovermode: "closest",
      ...given,
      uirevision: "kept",
      xaxis: { ...axis, ...given.xaxis },
      yaxis: { ...axis, ...given.yaxis },
    };
    if (given.scene) {
      merged.scene = { ...given.scene };
      for (const key of ["xaxis", "yaxis", "zaxis"]) {
        merged.scene[key] = { ...given.scene[key], gridcolor: now.grid, color: now.ink };
      }
    }
    return merged;
  }

  function view(figure) {
    if (!figure.views) return figure;
    const wanted = chosen[figure.group || figure.name];
    return figure.views.find((one) => one.label === wanted) || figure.views[0];
  }

  // The script that draws is large: a page that has no pictures yet does without, one from disk has it within.
  let loading = null;
  function drawing() {
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
    await drawing();
    const figure = mounted.get(element);
    if (!figure) return;
    const now = colours();
    const shown = view(figure);
    const place = element.querySelector(".plot");
    const wide = place.clientWidth > 420;  // on a small screen the tools would lie on the legend
    const options = { displaylogo: false, displayModeBar: wide ? "hover" : false,
      modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    const lines = shown.data.filter((trace) => trace.name && trace.showlegend !== false).length;
    const height = figure.height + (lines > 3 && !figure.name.startsWith("timeline") ? 18 * lines : 0);
    await Plotly.react(place, traces(shown.data, now), layout(shown.layout || {}, now, height), options);
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

  function words(element, figure) {
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

  // A place that becomes wider or narrower, or comes into sight, has its picture fitted.
  const widths = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const drawn = target._fullLayout && target._fullLayout.width;
      if (drawn && contentRect.width > 0 && Math.abs(drawn - contentRect.width) > 1) Plotly.Plots.resize(target);
    }
  });

  // What a figure is made of apart from its numbers: if that stays, the picture is only brought up to date.
  const shape = (figure) => JSON.stringify([figure.title, figure.note, (figure.views || []).map((v) => v.label)]);

  function show(element, figure) {
    const before = mounted.get(element);
    mounted.set(element, figure);
    if (!before || shape(before) !== shape(figure)) words(element, figure);
    return plot(element);
  }

  // Figures into a container, by name: those that are there are updated, those that are gone go.
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
    // Each is put in its place before any is drawn, for a drawing takes the width it finds.
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

  // Paper is white.
  let before = null;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme || ""; setTheme("light"); });
  window.addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    redraw();
  });

  return { show, gallery, forget, theme, themeButton, drawing };
})();
