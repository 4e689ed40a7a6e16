// Why tokens missed, in words and drawn as one bar; first the causes that something can be done about.

import { arrange, make, setShare, setText, show } from "./dom.js";
import { ratio } from "./figures.js";
import { count, percent } from "./format.js";

const CAUSES = [
  ["stale_digest", "the digest promised it, the cache did not hold it", "poll digests more often, or larger caches"],
  ["routed_by_load", "another replica held it, and was too busy", "the price of balance; compare policies"],
  ["routed_by_membership", "who held it left, failed or restarted", "slower scaling, gentler restarts"],
  ["evicted", "was computed once, and nobody holds it now", "larger caches"],
  ["key_mismatch", "was computed under another salt or adapter only", "fewer salts"],
  ["unknown", "was computed once; what became of it cannot be told", "engines that report more"],
  ["cold", "was never computed before", "nothing: it is new"],
  ["partial_block", "stands behind the last block that can hit", "nothing: blocks hit whole"],
];

export const words = (cause) => cause.replaceAll("_", " ");

// One bar, cut by cause.
export class CauseBar {
  #parts;

  constructor() {
    this.#parts = CAUSES.map(([cause]) => [cause, make("span", { "data-cause": cause })]);
    this.element = make("div", { class: "stack", "aria-hidden": "true" }, ...this.#parts.map(([, part]) => part));
  }

  update(uncached) {
    const all = total(uncached);
    for (const [cause, part] of this.#parts) {
      setShare(part, ratio(uncached[cause] ?? 0, all) ?? 0);
      show(part, Boolean(uncached[cause]));
    }
  }
}

// The bar with a legend that has the numbers and what they speak for.
export class Causes {
  #bar = new CauseBar();
  #rows = new Map();
  #body = make("tbody");

  constructor(parent) {
    for (const [cause, meaning, remedy] of CAUSES) {
      const cells = { tokens: make("td", { class: "number" }), share: make("td", { class: "number" }) };
      const name = make("th", { scope: "row" }, make("span", { class: "swatch", "data-cause": cause }), words(cause));
      const row = make("tr", {}, name, cells.tokens, cells.share, make("td", { class: "meaning" }, meaning), make("td", { class: "wide quiet" }, remedy));
      this.#rows.set(cause, { row, ...cells });
    }
    const titles = [["Cause"], ["Tokens", "number"], ["Share", "number"], ["The token", "meaning"], ["Speaks for", "wide"]];
    const head = make("tr", {}, ...titles.map(([title, kind]) => make("th", { scope: "col", class: kind ?? "" }, title)));
    const caption = make("caption", { class: "unseen" }, "Prompt tokens that were not served from cache, by cause");
    parent.append(this.#bar.element, make("table", { class: "legend" }, caption, make("thead", {}, head), this.#body));
    arrange(this.#body, [...this.#rows.values()].map(({ row }) => row));
  }

  update(uncached) {
    const all = total(uncached);
    this.#bar.update(uncached);
    for (const [cause, { row, tokens, share }] of this.#rows) {
      const missed = uncached[cause] ?? 0;
      setText(tokens, count(missed));
      setText(share, percent(ratio(missed, all)));
      row.classList.toggle("none", !missed);
    }
  }
}

// Say the causes of one prompt in a line.
export function inWords(uncached) {
  return CAUSES.filter(([cause]) => uncached?.[cause])
    .map(([cause]) => `${count(uncached[cause])} ${words(cause)}`)
    .join(", ");
}

export const total = (uncached) => Object.values(uncached).reduce((all, tokens) => all + tokens, 0);
