// Dialogs that name, tag, archive and delete runs.

import { known, post } from "./api.js";
import { element } from "./elements.js";

const BATCH = 400;  // runs in one request

async function inBatches(ids, send) {
  for (let start = 0; start < ids.length; start += BATCH) await send(ids.slice(start, start + BATCH));
}

export function changeLabels(ids, changes) {
  return inBatches(ids, (some) => post("/api/runs/label", { ids: some, ...changes }));
}

const what = (ids) => (ids.length === 1 ? known.runs.get(ids[0])?.name || `run ${ids[0]}` : `${ids.length} runs`);

// Show a dialog; `submit` may throw an error, which is shown in the dialog.
function ask(title, action, parts, submit, kind = "main") {
  const problem = element("p", { className: "error", role: "alert", hidden: true });
  const confirm = element("button", { type: "submit", className: kind, textContent: action });
  const cancel = element("button", { type: "button", textContent: "Cancel" });
  const form = element("form", { method: "dialog" }, element("h2", { textContent: title, id: "dialog-title" }), ...parts, problem,
    element("p", { className: "bar" }, confirm, cancel));
  const dialog = element("dialog", { className: "card", "aria-labelledby": "dialog-title" }, form);
  const before = document.activeElement;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    confirm.disabled = true;
    try {
      await submit();
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      confirm.disabled = false;
    }
  });
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function field(label, input) {
  return element("p", {}, element("label", {}, `${label} `, input));
}

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export function editLabels(ids) {
  const rows = ids.map((id) => known.runs.get(id)).filter(Boolean);
  const tags = [...new Set(rows.flatMap((row) => row.tags ?? []))].sort();
  if (rows.length === 1) {
    const [row] = rows;
    const name = element("input", { type: "text", value: row.name ?? "", maxLength: 120 });
    const list = element("input", { type: "text", value: tags.join(" "), placeholder: "paper baseline" });
    const notes = element("textarea", { value: row.notes ?? "", rows: 5, maxLength: 4000 });
    return ask(`Label ${row.method}, seed ${row.seed ?? "?"}`, "Save",
      [field("Name", name), field("Tags", list), field("Notes", notes)], () => {
        const wanted = words(list.value);
        return changeLabels(ids, { name: name.value, notes: notes.value, add_tags: wanted,
          remove_tags: tags.filter((tag) => !wanted.includes(tag)) });
      });
  }
  const added = element("input", { type: "text", placeholder: "paper baseline" });
  const removed = element("input", { type: "text", placeholder: tags.join(" ") });
  return ask(`Tag ${what(ids)}`, "Save", [field("Add tags", added), field("Remove tags", removed)],
    () => changeLabels(ids, { add_tags: words(added.value), remove_tags: words(removed.value) }));
}

export function archive(ids, archived) {
  return changeLabels(ids, { archived });
}

export function askToDelete(ids, done = () => {}) {
  const names = ids.slice(0, 8).map((id) => element("li", { textContent: [known.runs.get(id)?.name, known.runs.get(id)?.method, id].filter(Boolean).join(", ") }));
  if (ids.length > 8) names.push(element("li", { textContent: `and ${ids.length - 8} more` }));
  const parts = [element("p", { textContent: "This deletes the records from the disk and cannot be undone. Archive runs to hide them instead." }),
    element("ul", {}, ...names)];
  return ask(`Delete ${what(ids)}?`, ids.length === 1 ? "Delete the run" : `Delete ${ids.length} runs`, parts, async () => {
    await inBatches(ids, (some) => post("/api/runs/delete", { ids: some, count: some.length }));
    done();
  }, "danger");
}
