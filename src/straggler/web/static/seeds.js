// Groups of runs that differ only in their seed, and means with 95 % confidence intervals.

import { valueOf } from "./query.js";

// Student's t at 97.5 % for 1, 2, … degrees of freedom; beyond the table it is close to 1.96.
const QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
  2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042];
const decimals = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
const FEWEST_SEEDS = 3;  // for which an interval is shown
const RESULTS = new Set(["id", "seed", "status", "spent", "test_accuracy", "mean_staleness", "updates", "gradients", "seconds",
  "converged", "error", "started", "problems", "name", "tags", "notes", "archived", "settings"]);

export function groupSeeds(rows) {
  const groups = new Map();
  for (const row of rows) {
    const listed = Object.keys(row).filter((key) => !RESULTS.has(key)).sort();
    const settings = Object.entries(row.settings ?? {}).sort();
    const key = JSON.stringify([listed.map((name) => row[name]), settings]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  return [...groups.entries()].map(([key, members]) => ({ key, members, runs: withoutCopies(members) }));
}

// Runs with the same seed are copies and count once.
function withoutCopies(members) {
  const bySeed = new Map();
  for (const row of members) if (!bySeed.has(row.seed)) bySeed.set(row.seed, row);
  return [...bySeed.values()];
}

export function collect(group, key) {
  return group.runs.map((row) => valueOf(row, key)).filter((value) => typeof value === "number");
}

export function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

export function halfWidth(values) {
  if (values.length < FEWEST_SEEDS) return null;
  const middle = mean(values);
  const variance = values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1);
  return (QUANTILES[values.length - 2] ?? 1.96) * Math.sqrt(variance / values.length);
}

// `mean ± half-width`, from three runs on; how many did not converge, or did not reach the target.
export function interval(group, key, digits) {
  const values = collect(group, key);
  const lost = group.runs.filter((row) => row.converged === false).length;
  const missing = key === "test_accuracy" ? lost : 0;
  if (!values.length) return missing ? "NC" : "–";
  const half = halfWidth(values);
  const text = decimals(mean(values), digits) + (half === null ? "" : ` ± ${decimals(half, digits)}`);
  if (missing) return `${text} (${missing} of ${group.runs.length} NC)`;
  if (key === "time_to_target" && values.length < group.runs.length) return `${text} (${values.length} of ${group.runs.length})`;
  return text;
}
