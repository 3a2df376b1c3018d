// Shows the section that the address names after the #.

import { follow } from "./api.js";
import * as detail from "./detail.js";
import * as play from "./play.js";
import * as runs from "./runs.js";
import * as studies from "./studies.js";
import * as sweep from "./sweep.js";

const sections = ["runs", "studies", "sweep", "detail", "play"];

// Decode a part of the address; invalid escapes stay as they are.
function decodePart(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [, page, rest] = location.hash.split("/");
  const names = (rest ?? "").split(",").filter(Boolean).map(decodePart);
  const detailed = page === "run" && names.length;
  const open = detailed ? "detail" : page === "sweep" && names.length ? "sweep" : ["studies", "play"].includes(page) ? page : "runs";
  const moved = document.getElementById(open).hidden;
  for (const name of sections) document.getElementById(name).hidden = name !== open;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === (open === "sweep" ? "studies" : open === "detail" ? "runs" : open)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (open === "detail") detail.open(names);
  else if (open === "play") play.open();
  else if (open === "studies") studies.show();
  else if (open === "sweep") sweep.open(names[0]);
  else runs.open(names[0] ?? "");
  return moved;
}

straggler.themeButton(document.getElementById("theme"));
runs.begin();
studies.begin();
sweep.begin();
detail.begin();
play.begin();
window.addEventListener("hashchange", () => {
  if (!route()) return;
  document.getElementById("main").focus({ preventScroll: true });  // for screen readers; the header stays visible
  window.scrollTo(0, 0);
});
route();
follow(document.getElementById("connection"));
window.requestIdleCallback(() => straggler.loadPlotly());  // needed soon
