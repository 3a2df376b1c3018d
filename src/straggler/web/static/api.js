// Asking the server, and being told.

const token = document.querySelector('meta[name="straggler-token"]').content;

async function answer(response) {
  if (!response.ok) throw new Error((await response.text()) || response.statusText);
  return response.json();
}

export async function get(path) {
  return answer(await fetch(path));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-straggler-token": token };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) }));
}

// What is known of all runs, kept up to date by the server; listeners are told which runs changed.
export const known = { runs: new Map(), studies: [], progress: [], started: {} };
const listeners = new Set();

export function listen(listener) {
  listeners.add(listener);
}

export function follow(connection) {
  const source = new EventSource("/api/events");
  let first = true;
  source.onopen = () => { connection.textContent = "live"; first = true; };
  source.onerror = () => { connection.textContent = "no connection, trying again…"; };
  source.onmessage = (message) => {
    const news = JSON.parse(message.data);
    if (first) known.runs.clear();
    first = false;
    for (const row of news.runs ?? []) known.runs.set(row.id, row);
    for (const id of news.gone ?? []) known.runs.delete(id);
    for (const key of ["studies", "progress", "started"]) if (news[key]) known[key] = news[key];
    const changed = new Set((news.runs ?? []).map((row) => row.id));
    for (const listener of listeners) listener(changed, news);
  };
}

// Calls of a function that is slow: one at a time, and the last wish wins.
export function latest(work) {
  let busy = false;
  let again = null;
  return async function call(...wish) {
    if (busy) { again = wish; return; }
    busy = true;
    try {
      await work(...wish);
    } finally {
      busy = false;
      if (again) { const next = again; again = null; call(...next); }
    }
  };
}
