// Requests to the server, and the state that it streams.

const token = document.querySelector('meta[name="straggler-token"]').content;

async function readJson(response) {
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  return response.json();
}

export async function get(path) {
  return readJson(await fetch(path));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-straggler-token": token };
  return readJson(await fetch(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) }));
}

// All runs and studies, updated by the server. Listeners receive the ids of the runs that changed.
// `total` is the number of runs while the server has only sent the newest.
export const known = { runs: new Map(), studies: [], progress: [], started: {}, loaded: false, total: null };
const listeners = new Set();

export function listen(listener) {
  listeners.add(listener);
}

export function follow(connection) {
  const source = new EventSource("/api/events");
  let first = true;
  source.onopen = () => { connection.textContent = "live"; first = true; };
  source.onerror = () => { connection.textContent = "disconnected, reconnecting…"; };
  source.onmessage = (message) => {
    const changes = JSON.parse(message.data);
    if (first) known.runs.clear();
    first = false;
    known.loaded = true;
    known.total = changes.total ?? null;
    for (const row of changes.runs ?? []) known.runs.set(row.id, row);
    for (const id of changes.gone ?? []) known.runs.delete(id);
    for (const key of ["studies", "progress", "started"]) if (changes[key]) known[key] = changes[key];
    const changed = new Set((changes.runs ?? []).map((row) => row.id));
    for (const listener of listeners) listener(changed, changes);
  };
}

// Wrap a slow function: one call at a time. Of the calls that are made meanwhile, only the last is executed.
export function latest(work) {
  let busy = false;
  let again = null;
  return async function call(...args) {
    if (busy) { again = args; return; }
    busy = true;
    try {
      await work(...args);
    } finally {
      busy = false;
      if (again) { const next = again; again = null; call(...next); }
    }
  };
}
