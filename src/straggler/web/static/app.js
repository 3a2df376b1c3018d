// The page: which part of it is open, by the address after the #.

import { follow } from "./api.js";
import * as detail from "./detail.js";
import * as play from "./play.js";
import * as runs from "./runs.js";

const sections = ["runs", "detail", "play"];

function route() {
  const [, page, rest] = location.hash.split("/");
  const ids = (rest ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  const open = page === "run" && ids.length ? "detail" : page === "play" ? "play" : "runs";
  for (const name of sections) document.getElementById(name).hidden = name !== open;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (open === "detail") detail.open(ids);
  else if (open === "play") play.open();
  else runs.show();
}

straggler.themeButton(document.getElementById("theme"));
runs.begin();
detail.begin();
play.begin();
window.addEventListener("hashchange", () => { route(); document.getElementById("main").focus(); });
route();
follow(document.getElementById("connection"));
window.requestIdleCallback(() => straggler.drawing());  // it will be needed soon
