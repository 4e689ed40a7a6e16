// What follows from the router's counts: ratios, rates and medians, since its start or over the last minute.

const SPAN_SECONDS = 60;
const COUNTED = ["requests", "prompt_tokens", "expected_tokens", "hit_tokens", "unreported"];

export const ratio = (part, all) => (all > 0 ? part / all : null);

// Keeps what was told over the last minute, so that figures can be of that alone.
export class History {
  #told = [];

  // Take what was told; a router that started anew begins a new history.
  take(told) {
    const last = this.#told.at(-1);
    if (last && (told.router.uptime_seconds < last.router.uptime_seconds || told.totals.requests < last.totals.requests)) {
      this.#told = [];
    }
    this.#told.push(told);
    while (this.#told.length > 2 && told.at - this.#told[1].at >= SPAN_SECONDS) this.#told.shift();
  }

  // Return the figures of the last that was told; `minute` counts what came since a minute ago alone.
  figures(minute) {
    const now = this.#told.at(-1);
    const before = minute && this.#told.length > 1 ? this.#told[0] : null;
    const old = new Map(before?.replicas.map((one) => [one.name, one]));
    const replicas = now.replicas.map((one) => ({ ...one, ...since(one, old.get(one.name)) }));
    const totals = since(now.totals, before?.totals);
    const elapsed = before ? now.at - before.at : now.router.uptime_seconds;
    // Those that left count in the totals, not among the shares of those that are there.
    const requests = replicas.reduce((sum, one) => sum + one.requests, 0);
    for (const one of replicas) one.share = ratio(one.requests, requests);
    return { ...now, replicas, totals: { ...totals, rate: ratio(totals.requests, elapsed) }, minute: Boolean(before) };
  }
}

// Return counts less what they were before, with the ratios that follow. A count that fell began anew.
function since(now, before) {
  const fresh = !before || now.requests < before.requests;
  const less = (value, old) => value - (fresh ? 0 : (old ?? 0));
  const told = {};
  for (const name of COUNTED) told[name] = less(now[name], before?.[name]);
  told.uncached = {};
  for (const [cause, tokens] of Object.entries(now.uncached)) told.uncached[cause] = less(tokens, before?.uncached[cause]);
  if (now.first_bytes) {
    told.first_bytes = now.first_bytes.map(([bound, sum], index) => [bound, less(sum, before?.first_bytes[index]?.[1])]);
  }
  // Where nobody ever tells what was hit, there is no ratio.
  const tells = told.requests > told.unreported || told.hit_tokens > 0;
  told.hit_ratio = tells ? ratio(told.hit_tokens, told.prompt_tokens) : null;
  told.expected_ratio = ratio(told.expected_tokens, told.prompt_tokens);
  told.against = told.hit_ratio === null || told.expected_ratio === null ? null : told.hit_ratio - told.expected_ratio;
  return told;
}

// Approximate the median of a histogram from its sums below each bound, null without any.
export function median(buckets) {
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!all) return null;
  let [lower, below] = [0, 0];
  for (const [bound, sum] of buckets) {
    if (sum >= all / 2) {
      return bound === null ? lower : lower + ((bound - lower) * (all / 2 - below)) / (sum - below);
    }
    [lower, below] = [bound, sum];
  }
  return null;
}

// Return who served most, null where nobody served.
export function busiest(replicas) {
  return replicas.reduce((most, one) => (one.share !== null && one.share > (most?.share ?? 0) ? one : most), null);
}

// Return the sum of what replicas told, null where none did.
export function sum(replicas, name) {
  const told = replicas.map((one) => one[name]).filter((value) => value !== null);
  return told.length ? told.reduce((all, value) => all + value, 0) : null;
}
