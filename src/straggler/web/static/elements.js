// Builds elements of the pages. Text from records is set as text, never as HTML.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role" || key === "scope" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

export function number(value, digits = 2) {
  if (typeof value !== "number") return "–";
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: 0 });
}

// A number with two decimals.
export function fixed(value) {
  return typeof value === "number" ? value.toFixed(2) : "–";
}

export function progress(bar, row) {
  const running = row && row.status === "running";
  bar.hidden = !running;
  if (running) fill(bar, row.spent);
}

export function fill(bar, part) {
  const percent = Math.min(100, Math.round(100 * (part ?? 0)));
  bar.setAttribute("aria-valuenow", percent);
  bar.firstElementChild.style.width = `${percent}%`;
}

export function duration(seconds) {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${number(seconds / 3600, 1)} h`;
}

export function sentence(row) {
  if (!row) return "";
  const parts = [row.status];
  if (row.status === "running") parts.push(`${Math.round(100 * (row.spent ?? 0))} %`);
  if (typeof row.test_accuracy === "number" && row.converged !== false) parts.push(`accuracy ${number(row.test_accuracy, 1)} %`);
  if (typeof row.mean_staleness === "number") parts.push(`mean staleness ${number(row.mean_staleness, 1)}`);
  if (typeof row.updates === "number") parts.push(`${number(row.updates)} updates`);
  if (row.converged === false) parts.push("no convergence");
  if (row.error && row.status !== "interrupted") parts.push(row.error);
  if (row.status === "lost") parts.push(`the process has exited; resume with: straggler resume ${row.id}`);
  return parts.join(" · ");
}

// What is known of a run that this server started: `known.started[id]`.
export const silence = (state) => (state?.silent ? ` · no progress for ${state.silent} s` : "");
export const stopLabel = (state) => (state?.can_be_ended ? "End now without saving" : "Stop and save");

// A heading that breaks between words, but not before its unit: "time to", "80 % (s)".
export const heading = (text) => text.replace(/ (?=[%(])/g, "\u00a0");

export function table(place, columns, rows, note = "") {
  const heads = columns.map((name) => element("th", { scope: "col", textContent: heading(name) }));
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell, position) => (
    position === 0 ? element("th", { scope: "row", textContent: cell })
      : element("td", { className: "number", textContent: cell })))));
  place.replaceChildren(element("table", {},
    element("caption", {}, "Summary", ...(note ? [element("span", { className: "muted", textContent: ` ${note}` })] : [])),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines)));
}

export async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Press Ctrl+C";
    getSelection().selectAllChildren(document.getElementById("command"));
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
