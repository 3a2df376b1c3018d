// What a page remembers: in its address, so that a link shows the same, and in the browser for the next visit.

const PREFIX = "straggler-";

function stored(key) {
  try { return localStorage.getItem(PREFIX + key); } catch { return null; }
}

// The address decides; without an entry there, the last choice in this browser.
export function readPreference(key, standard) {
  return new URLSearchParams(location.search).get(key) ?? stored(key) ?? standard;
}

export function writePreference(key, value, standard, keep = true) {
  const query = new URLSearchParams(location.search);
  if (value === standard) query.delete(key); else query.set(key, value);
  const text = query.toString();
  history.replaceState(history.state, "", `${location.pathname}${text ? `?${text}` : ""}${location.hash}`);
  if (!keep) return;
  try { localStorage.setItem(PREFIX + key, value); } catch { /* the address remembers it */ }
}

const STANDARD_TARGET = "80";

export function target() {
  const found = Number(readPreference("target", STANDARD_TARGET));
  return found > 0 && found <= 100 ? found : Number(STANDARD_TARGET);
}

export function setTarget(value) {
  writePreference("target", String(value), STANDARD_TARGET);
}
