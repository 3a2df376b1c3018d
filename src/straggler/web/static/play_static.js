// The playground without a server: nothing can be trained.
"use strict";

(() => {
  straggler.themeButton(document.getElementById("theme"));
  const player = new playground.Player(JSON.parse(document.getElementById("choices").textContent), null);
  const open = () => player.open(location.hash.replace(/^#\/play\/?/, ""));
  window.addEventListener("hashchange", open);
  open();
})();
