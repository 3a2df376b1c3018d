// Draws the playground: a timeline per method, on which gradients travel to the server, and the race.
"use strict";

(() => {
  const FLIGHT = 0.5;  // seconds on the wall in which a gradient travels to the server
  const SERVER_HEIGHT = 26;
  const LEFT = 30;
  // Colours of staleness, from fresh to stale; colour-blind readers can tell them apart.
  const RAMP = [[0, 158, 115], [86, 180, 233], [240, 228, 66], [230, 159, 0], [213, 94, 0], [160, 40, 120]];
  const LANE_COLOURS = { a: ["#005a8e", "#7cc4ee"], b: ["#a33c00", "#ff9d66"] };

  // The colour of a staleness on a logarithmic scale up to `most`.
  function staleColour(staleness, most) {
    const place = (Math.log2(1 + staleness) / Math.log2(1 + Math.max(most, 7))) * (RAMP.length - 1);
    const low = Math.min(Math.floor(place), RAMP.length - 2);
    const part = Math.min(1, place - low);
    return `rgb(${RAMP[low].map((value, at) => Math.round(value + part * (RAMP[low + 1][at] - value))).join(",")})`;
  }

  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const laneColour = (lane) => LANE_COLOURS[lane][isDark() ? 1 : 0];

  // A canvas with the resolution of the screen, cleared, and the colours of the page.
  function prepare(canvas) {
    const { clientWidth: width, clientHeight: height } = canvas;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    const style = getComputedStyle(canvas);
    const read = (name) => style.getPropertyValue(name).trim();
    return { pen, width, height, ink: read("--ink"), muted: read("--muted"), line: read("--line"), page: read("--page") };
  }

  // What a lane needs at every frame, computed once per simulation.
  function indexJobs(simulation, workers) {
    const rows = Array.from({ length: workers }, () => []);
    for (const job of [...simulation.jobs, ...simulation.running]) rows[job.worker].push(job);
    for (const row of rows) row.sort((a, b) => a.started - b.started);
    const steps = [];
    let before = 0;
    for (const job of simulation.jobs) {
      for (; before < job.k; before += 1) steps.push(job.time);
    }
    const absences = Array.from({ length: workers }, () => []);
    for (const { worker, time, isJoining } of simulation.changes) {
      if (!isJoining) absences[worker].push([time, Infinity]);
      else if (absences[worker].length) absences[worker].at(-1)[1] = time;
    }
    return { ...simulation, rows, steps, absences };
  }

  // The number of values of a sorted list that are at most `limit`.
  function countUpTo(values, limit) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= limit) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  const firstAfter = (row, time) => {
    let [low, high] = [0, row.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row[middle].time < time) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  // Seconds that fit on a timeline: about ten jobs of a worker, but at least what makes a gradient visible.
  function windowSeconds(simulation, workers) {
    const shown = simulation.jobs.slice(0, 20 * workers);
    const lengths = shown.map((job) => job.time - job.started).sort((a, b) => a - b);
    const middle = lengths[Math.floor(lengths.length / 2)] ?? 1;
    return Math.min(12 * middle, simulation.end || 12 * middle);
  }

  // Draw one method's workers from `now - seconds` to `now`. `flight` is the virtual time of a gradient's flight.
  function drawLane(canvas, lane, now, { seconds, most, speed, still }) {
    const { pen, width, height, ink, muted, line, page } = prepare(canvas);
    const { rows, steps, absences } = lane;
    const right = width - 8;
    const span = seconds * 1.05;  // room at the right for bars that are growing
    const first = Math.max(0, now - seconds);
    const x = (time) => LEFT + ((time - first) / span) * (right - LEFT);
    const top = SERVER_HEIGHT + 10;
    const rowHeight = (height - top - 14) / rows.length;
    const thickness = Math.max(2, Math.min(22, rowHeight * 0.72));
    const y = (worker) => top + rowHeight * (worker + 0.5);
    const updates = countUpTo(steps, now);
    const flight = still ? 0 : Math.min(FLIGHT * speed, 0.15 * seconds);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, right - LEFT, height);
    pen.clip();
    // seconds, and the server
    const tick = 10 ** Math.floor(Math.log10(span)) / (span / 10 ** Math.floor(Math.log10(span)) < 3 ? 2 : 1);
    pen.fillStyle = muted;
    pen.strokeStyle = line;
    for (let at = Math.ceil(first / tick) * tick; at < first + span; at += tick) {
      pen.beginPath();
      pen.moveTo(x(at), SERVER_HEIGHT);
      pen.lineTo(x(at), height - 12);
      pen.stroke();
      pen.fillText(`${Number(at.toPrecision(6))} s`, x(at) + 3, height - 2);
    }
    pen.fillStyle = line;
    pen.fillRect(LEFT, 2, x(now) - LEFT, SERVER_HEIGHT - 4);
    rows.forEach((row, worker) => {
      const middle = y(worker);
      pen.strokeStyle = muted;
      pen.setLineDash([2, 4]);
      pen.beginPath();
      pen.moveTo(x(first), middle);
      pen.lineTo(x(now), middle);
      pen.stroke();
      pen.setLineDash([]);
      for (const [from, until] of absences[worker]) {
        if (from > now || until < first) continue;
        pen.fillStyle = page;
        const start = x(Math.max(from, first));
        pen.fillRect(start, middle - thickness / 2, x(Math.min(until, now)) - start, thickness);
        pen.fillStyle = muted;
        if (rowHeight > 11) pen.fillText("away", start + 4, middle + 4);
      }
      for (let place = firstAfter(row, first); place < row.length && row[place].started < now; place += 1) {
        drawJob(pen, row[place], { x, middle, thickness, now, updates, most, ink, muted, rowHeight, page });
      }
    });
    // gradients on their way, and those that the server has used
    rows.forEach((row, worker) => {
      for (let place = firstAfter(row, first - flight); place < row.length && row[place].finished < now; place += 1) {
        drawGradient(pen, row[place], { x, from: y(worker), now, flight, most, muted, still });
      }
    });
    pen.strokeStyle = ink;
    pen.beginPath();
    pen.moveTo(x(now) + 0.5, 0);
    pen.lineTo(x(now) + 0.5, height - 12);
    pen.stroke();
    pen.restore();
    pen.fillStyle = muted;
    pen.textAlign = "right";
    pen.fillText("server", LEFT - 0, SERVER_HEIGHT / 2 + 4, LEFT);
    if (rowHeight > 9) rows.forEach((_, worker) => pen.fillText(String(worker), LEFT - 6, y(worker) + 4));
    pen.textAlign = "left";
    return updates;
  }

  function drawJob(pen, job, { x, middle, thickness, now, updates, most, ink, muted, rowHeight, page }) {
    const end = Math.min(job.finished, now);
    const hasEnded = job.time <= now;
    const isLost = hasEnded && ["cancelled", "lost"].includes(job.decision);
    const staleness = hasEnded ? job.staleness : Math.max(0, updates - job.version);
    const left = x(job.started);
    const stop = isLost ? Math.min(end, job.time) : end;
    const wide = Math.max(1, x(stop) - left - 1);
    const high = middle - thickness / 2;
    pen.globalAlpha = isLost ? 0.35 : 1;
    pen.fillStyle = isLost ? muted : staleColour(staleness, most);
    pen.fillRect(left, high, wide, thickness);
    pen.globalAlpha = 1;
    if (job.received > job.started) {  // the model is on its way to the worker
      pen.globalAlpha = 0.6;
      pen.fillStyle = page;
      pen.fillRect(left, high + 1, Math.max(0, x(Math.min(job.received, stop)) - left), thickness - 2);
      pen.globalAlpha = 1;
    }
    if (isLost || (hasEnded && job.decision === "dropped")) {
      pen.strokeStyle = ink;
      const [edge, size] = [left + wide, Math.min(4, thickness / 2)];
      pen.beginPath();
      pen.moveTo(edge - size, middle - size);
      pen.lineTo(edge + size, middle + size);
      pen.moveTo(edge + size, middle - size);
      pen.lineTo(edge - size, middle + size);
      pen.stroke();
    } else if (rowHeight > 13 && wide > 18) {
      pen.fillStyle = Math.log2(1 + staleness) > 0.85 * Math.log2(1 + Math.max(most, 7)) ? "#fff" : "#111";
      pen.textAlign = "right";
      pen.fillText(String(staleness), left + wide - 3, middle + 4);
      pen.textAlign = "left";
    }
  }

  // A dot that rises from its worker to the server, and stays there as a mark.
  function drawGradient(pen, job, { x, from, now, flight, most, muted, still }) {
    if (["cancelled", "lost", "running"].includes(job.decision) && job.time <= now) return;
    const land = Math.max(job.time, job.finished + flight);
    const part = land > job.finished ? Math.min(1, (now - job.finished) / (land - job.finished)) : 1;
    const isDropped = job.decision === "dropped" && job.time <= now;
    const to = SERVER_HEIGHT / 2;
    if (part >= 1 || still) {
      if (isDropped || job.time > now) return;
      pen.fillStyle = staleColour(job.staleness, most);
      pen.fillRect(x(Math.max(job.time, still ? 0 : land - flight)) - 1.5, 3, 3, SERVER_HEIGHT - 6);
      return;
    }
    const eased = part * part * (3 - 2 * part);
    pen.globalAlpha = isDropped ? Math.max(0, 1 - 1.3 * part) : 1;
    pen.fillStyle = isDropped ? muted : staleColour(job.staleness ?? 0, most);
    pen.beginPath();
    pen.arc(x(job.finished), from + (to - from) * (isDropped ? 0.5 * eased : eased), 5, 0, 2 * Math.PI);
    pen.fill();
    pen.strokeStyle = "#111";
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // The time at which a curve first reaches the target, or null.
  const findCrossing = (curve, target) => curve.find(([, accuracy]) => accuracy >= target)?.[0] ?? null;

  // Draw the accuracy of both methods over the same clock, with a finish line.
  function drawRace(canvas, curves, now, { end, target }) {
    const { pen, width, height, ink, muted, line } = prepare(canvas);
    const [left, right, top, bottom] = [40, width - 8, 8, height - 16];
    const x = (time) => left + (time / end) * (right - left);
    const y = (accuracy) => bottom - (accuracy / 100) * (bottom - top);
    pen.strokeStyle = line;
    pen.fillStyle = muted;
    for (const accuracy of [0, 25, 50, 75, 100]) {
      pen.beginPath();
      pen.moveTo(left, y(accuracy));
      pen.lineTo(right, y(accuracy));
      pen.stroke();
      pen.textAlign = "right";
      if (height > 110 || accuracy % 50 === 0) pen.fillText(`${accuracy} %`, left - 3, y(accuracy) + 4);
    }
    pen.textAlign = "center";
    const parts = Math.max(2, Math.floor((right - left) / 90));
    const raw = end / parts;
    const size = 10 ** Math.floor(Math.log10(raw));
    const tick = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= raw);
    for (let at = 0; at <= end; at += tick) pen.fillText(`${Number(at.toPrecision(6))} s`, Math.min(x(at), right - 14), height - 3);
    pen.textAlign = "left";
    pen.setLineDash([6, 4]);
    pen.strokeStyle = ink;
    pen.beginPath();
    pen.moveTo(left, y(target));
    pen.lineTo(right, y(target));
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = ink;
    pen.textAlign = "right";
    pen.fillText(`finish: ${target} %`, right - 2, y(target) + (target > 50 ? 13 : -5));
    pen.textAlign = "left";
    for (const [lane, curve] of Object.entries(curves)) {
      if (!curve || !curve.length) continue;
      const colour = laneColour(lane);
      pen.strokeStyle = colour;
      pen.lineWidth = 2;
      pen.beginPath();
      let before = null;
      for (const [time, accuracy] of curve) {
        if (time > now) {
          if (!before) break;
          const part = (now - before[0]) / (time - before[0]);
          pen.lineTo(x(now), y(before[1] + part * (accuracy - before[1])));
          break;
        }
        if (before) pen.lineTo(x(time), y(accuracy));
        else pen.moveTo(x(time), y(accuracy));
        before = [time, accuracy];
      }
      pen.stroke();
      pen.lineWidth = 1;
      const crossing = findCrossing(curve, target);
      if (crossing !== null && crossing <= now) drawFlag(pen, x(crossing), y(target), colour);
    }
    pen.strokeStyle = muted;
    pen.beginPath();
    pen.moveTo(x(now), top);
    pen.lineTo(x(now), bottom);
    pen.stroke();
  }

  function drawFlag(pen, x, y, colour) {
    pen.fillStyle = colour;
    pen.strokeStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x, y + 6);
    pen.lineTo(x, y - 16);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x, y - 16);
    pen.lineTo(x + 13, y - 11);
    pen.lineTo(x, y - 6);
    pen.fill();
    pen.lineWidth = 1;
  }

  Object.assign(playground, { drawLane, drawRace, indexJobs, windowSeconds, findCrossing, countUpTo, staleColour, laneColour });
})();
