// One replica's row in the fleet's table, and the details below it; cells change only where figures do.

import { CauseBar, inWords } from "./causes.js";
import { make, setAttribute, setShare, setText } from "./dom.js";
import { NONE, count, percent, points, seconds, short } from "./format.js";

// From here on an expectation is called wrong, in points of a percentage and in prompt tokens.
const FAR_OFF = 0.1;
const ENOUGH_TOKENS = 1000;

// The columns: `by` is what they are sorted by, `kind` when they are left out for want of room; numbers without a
// bar stand at the right.
export const COLUMNS = [
  { title: "Replica", by: (one) => one.name, text: true },
  { title: "State", by: (one) => one.state, text: true },
  { title: "Engine", by: (one) => one.engine, text: true, kind: "widest" },
  { title: "Load", by: (one) => one.wait_seconds, hint: "Seconds until a prompt sent now would begin", bar: true },
  { title: "KV use", by: (one) => one.kv_usage, hint: "Share of KV blocks that requests hold", kind: "wide", bar: true },
  { title: "Hit ratio", by: (one) => one.hit_ratio, hint: "Cached share of prompt tokens; the mark is what was expected", bar: true },
  { title: "vs expected", by: (one) => one.against, hint: "Hit ratio less the expected one, in points", kind: "wide" },
  { title: "Share", by: (one) => one.share, hint: "Of all requests; the longest bar is the busiest", kind: "wide", bar: true },
  { title: "Prompt tokens", by: (one) => one.prompt_tokens, kind: "widest" },
  { title: "Digest age", by: (one) => one.digest_age_seconds, kind: "widest" },
];

export class Row {
  #opened = false;
  #parts;
  #details = null;
  #told;

  constructor(told, scales) {
    const parts = (this.#parts = {
      name: make("button", { type: "button", class: "name", "aria-expanded": "false" }),
      state: make("span", { class: "state" }),
      engine: make("td", { class: "widest" }),
      load: bar(),
      kv: bar(),
      hit: bar("expected"),
      against: make("td", { class: "wide number" }),
      share: bar(),
      tokens: make("td", { class: "widest number" }),
      digest: make("td", { class: "widest number" }),
    });
    parts.name.addEventListener("click", () => this.#toggle());
    this.element = make(
      "tr",
      {},
      make("th", { scope: "row" }, parts.name),
      make("td", {}, parts.state),
      parts.engine,
      make("td", { class: "meter" }, parts.load.element),
      make("td", { class: "wide meter" }, parts.kv.element),
      make("td", { class: "meter" }, parts.hit.element),
      parts.against,
      make("td", { class: "wide meter" }, parts.share.element),
      parts.tokens,
      parts.digest,
    );
    this.update(told, scales);
  }

  get elements() {
    return this.#opened ? [this.element, this.#details.element] : [this.element];
  }

  // `scales` say what is as long as a bar gets.
  update(told, scales) {
    this.#told = told;
    const parts = this.#parts;
    setText(parts.name, told.name);
    setText(parts.state, told.state);
    setAttribute(parts.state, "data-state", told.state);
    setText(parts.engine, told.engine || NONE);
    parts.load.set(told.wait_seconds / scales.wait_seconds, seconds(told.wait_seconds));
    parts.kv.set(told.kv_usage, percent(told.kv_usage, 0));
    parts.hit.set(told.hit_ratio, percent(told.hit_ratio), told.expected_ratio);
    setText(parts.against, points(told.against));
    parts.against.classList.toggle("off", farOff(told));
    parts.share.set(told.share === null ? null : told.share / scales.share, percent(told.share));
    setText(parts.tokens, short(told.prompt_tokens));
    setText(parts.digest, told.mismatch ? "mismatch" : seconds(told.digest_age_seconds));
    parts.digest.classList.toggle("off", told.mismatch);
    if (this.#opened) this.#details.update(told);
  }

  #toggle() {
    this.#opened = !this.#opened;
    setAttribute(this.#parts.name, "aria-expanded", String(this.#opened));
    if (this.#opened) {
      this.#details ??= new Details();
      this.#details.update(this.#told);
      this.element.after(this.#details.element);
      this.#details.fit();
    } else {
      this.#details.element.remove();
    }
  }
}

// Everything that is known of a replica, for narrow screens and the curious.
class Details {
  #values = new Map();
  #list = make("dl", { class: "facts" });
  #bar = new CauseBar();
  #causes = make("p", { class: "quiet" });
  #cell;

  constructor() {
    const box = make("div", { class: "details" }, this.#list, this.#bar.element, this.#causes);
    this.#cell = make("td", {}, box);
    this.element = make("tr", { class: "opened" }, this.#cell);
  }

  // Spans the columns that are shown: one that counted hidden ones in would take room for them from the others.
  fit() {
    const heads = this.element.closest("table")?.tHead.rows[0].cells ?? [];
    const shown = [...heads].filter((head) => head.getClientRects().length > 0).length;
    if (shown > 0 && this.#cell.colSpan !== shown) this.#cell.colSpan = shown;
  }

  update(told) {
    this.fit();
    for (const [title, text] of facts(told)) {
      if (!this.#values.has(title)) {
        const value = make("dd");
        this.#values.set(title, value);
        this.#list.append(make("div", {}, make("dt", {}, title), value));
      }
      setText(this.#values.get(title), text);
    }
    this.#bar.update(told.uncached);
    const missed = inWords(told.uncached);
    setText(this.#causes, missed ? `Missed tokens: ${missed}` : "No token missed.");
  }
}

function facts(told) {
  return [
    ["Engine", told.engine || "not known"],
    ["Models", told.models.join(", ") || "none told"],
    ["Work reported", seconds(told.work_seconds)],
    ["Requests", `${count(told.running)} running, ${count(told.waiting)} waiting, ${count(told.in_flight)} of this router`],
    ["KV use", percent(told.kv_usage)],
    ["Served", `${count(told.requests)} (${percent(told.share)})`],
    ["Prompt tokens", count(told.prompt_tokens)],
    ["Expected hits", `${count(told.expected_tokens)} (${percent(told.expected_ratio)})`],
    ["Hits", told.hit_ratio === null && told.requests ? "not told" : `${count(told.hit_tokens)} (${percent(told.hit_ratio)})`],
    ["Digest", told.mismatch ? "not read: its chain differs" : told.digest_age_seconds === null ? "none" : `${seconds(told.digest_age_seconds)} old`],
    ["Life of its cache", told.life],
  ];
}

const farOff = (told) => told.against !== null && Math.abs(told.against) >= FAR_OFF && told.prompt_tokens >= ENOUGH_TOKENS;

// A bar with its number; with a `marked` kind also a mark, as of what was expected.
function bar(marked) {
  const number = make("span");
  const line = make("span", { class: marked ? `bar ${marked}` : "bar", "aria-hidden": "true" });
  return {
    element: make("div", {}, line, number),
    set(share, text, mark = null) {
      setText(number, text);
      setShare(line, share ?? 0);
      if (marked) {
        setShare(line, mark ?? 0, "--mark");
        line.classList.toggle("unmarked", mark === null);
      }
    },
  };
}
