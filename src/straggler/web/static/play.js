// The playground on the live page: a backend that checks settings, trains both methods, and follows their curves.

import { get, known, latest, listen, post } from "./api.js";
import { silence, stopLabel } from "./elements.js";

const byId = (id) => document.getElementById(id);
let player = null;
let current = [];  // { id, settings } of the runs that were started last
let isStarting = false;

// Sends both methods to the server, and the player their curves while they grow.
const backend = {
  async train(wanted) {
    byId("run").disabled = isStarting = true;
    current = [];
    try {
      for (const settings of wanted) {
        const { id } = await post("/api/runs", settings);
        if (!current.some((run) => run.id === id)) current.push({ id, settings });
      }
    } catch (problem) {
      byId("play-status").textContent = problem.message;
    }
    byId("run").disabled = isStarting = false;
    await follow();
  },
  async stop() {
    const running = current.filter(({ id }) => known.started[id]?.running);
    await Promise.allSettled(running.map(({ id }) => post(`/api/runs/${id}/stop`)));
  },
};

function describe() {
  const states = current.map(({ id }) => {
    const { running, error } = known.started[id] ?? {};
    const row = known.runs.get(id);
    if (error) return error;
    if (row?.status === "running") return `training, ${Math.round(100 * (row.spent ?? 0))} %${silence(known.started[id])}`;
    return running && !row ? "starting" : row?.status ?? "";
  });
  return [...new Set(states.filter(Boolean))].join("; ");
}

const follow = latest(async () => {
  if (isStarting || !current.length) return;
  const query = current.map(({ id }) => `id=${id}`).join("&");
  const found = await get(`/api/curves?${query}`);
  player.receive(current.map(({ id, settings }) => [settings, found[id]]), describe());
  const active = current.map(({ id }) => known.started[id]).filter((state) => state?.running);
  byId("stop-runs").disabled = !active.length;
  byId("stop-runs").textContent = stopLabel(active.find((state) => state.can_be_ended));
  const done = current.filter(({ id }) => known.runs.has(id));
  byId("play-link").hidden = !done.length;
  const link = document.createElement("a");
  link.href = `#/run/${done.map(({ id }) => id).join(",")}`;
  link.textContent = "All figures of these runs";
  byId("play-link").replaceChildren(link);
});

export function begin() {
  listen((changed, changes) => {
    if (current.length && (changes.started || current.some(({ id }) => changed.has(id)))) follow();
  });
  window.addEventListener("hashchange", () => { if (!location.hash.startsWith("#/play")) player?.close(); });
}

export function open() {
  if (!player) {
    player = new playground.Player(JSON.parse(byId("choices").textContent), backend);
    get("/api/preview").catch(() => {});  // lets the server prepare processes that train
  }
  player.open(location.hash.replace(/^#\/play\/?/, ""));
}
