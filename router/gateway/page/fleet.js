// The fleet's table: sorted and filtered; rows are kept by name and moved, never made anew.

import { arrange, find, make, setAttribute, setText, show } from "./dom.js";
import { COLUMNS, Row } from "./replica.js";

// The least that a full bar of load stands for, so that an idle fleet looks idle.
const LEAST_SECONDS = 1;
const ORDER = ["ready", "warming", "joining", "draining", "suspect", "down"];
const collator = new Intl.Collator("en", { numeric: true });

export class FleetTable {
  #rows = new Map();
  #heads = [];
  #sorted = { column: COLUMNS[0], down: false };
  #replicas = [];
  #body;

  constructor(table) {
    this.#body = table.tBodies[0];
    table.tHead.append(make("tr", {}, ...COLUMNS.map((column) => this.#head(column))));
    find("sort").append(...COLUMNS.map((column, index) => make("option", { value: String(index) }, column.title)));
    find("sort").addEventListener("change", (event) => this.#sort(COLUMNS[event.target.value]));
    find("filter").addEventListener("input", () => this.#place());
    this.#showSorting();
  }

  update({ replicas, states }) {
    this.#replicas = replicas;
    const scales = {
      wait_seconds: Math.max(LEAST_SECONDS, ...replicas.map((one) => one.wait_seconds)),
      share: Math.max(1e-9, ...replicas.map((one) => one.share ?? 0)),
    };
    for (const one of replicas) {
      const row = this.#rows.get(one.name);
      if (row) row.update(one, scales);
      else this.#rows.set(one.name, new Row(one, scales));
    }
    const there = new Set(replicas.map((one) => one.name));
    for (const name of this.#rows.keys()) if (!there.has(name)) this.#rows.delete(name);
    this.#states = states;
    this.#place();
  }

  #states = {};

  #head(column) {
    const button = make("button", { type: "button", title: column.hint ?? "" }, column.title);
    button.addEventListener("click", () => this.#sort(column));
    const kind = [column.kind, column.bar ? "metered" : column.text ? "" : "number"].filter(Boolean).join(" ");
    const head = make("th", { scope: "col", class: kind }, button);
    this.#heads.push([column, head]);
    return head;
  }

  // Sort by a column; again by the same, the other way round. Numbers begin with the largest.
  #sort(column) {
    const same = column === this.#sorted.column;
    this.#sorted = { column, down: same ? !this.#sorted.down : !column.text };
    this.#showSorting();
    this.#place();
  }

  #showSorting() {
    const { column, down } = this.#sorted;
    for (const [one, head] of this.#heads) {
      setAttribute(head, "aria-sort", one === column ? (down ? "descending" : "ascending") : null);
    }
    find("sort").value = String(COLUMNS.indexOf(column));
  }

  #place() {
    const wanted = find("filter").value.trim().toLowerCase();
    const shown = this.#replicas.filter((one) => !wanted || matches(one, wanted)).sort((a, b) => this.#compare(a, b));
    arrange(this.#body, shown.flatMap((one) => this.#rows.get(one.name).elements));
    setText(find("states"), this.#summary(shown.length));
    const nobody = this.#replicas.length ? `No replica matches “${find("filter").value.trim()}”.` : "The fleet has no replica.";
    setText(find("nobody"), shown.length ? "" : nobody);
    show(find("nobody"), !shown.length);
  }

  #summary(shown) {
    const all = this.#replicas.length;
    const states = ORDER.filter((state) => this.#states[state]).map((state) => `${this.#states[state]} ${state}`);
    return [shown < all ? `${shown} of ${all} shown` : "", ...states].filter(Boolean).join(" · ");
  }

  #compare(a, b) {
    const { column, down } = this.#sorted;
    return (down ? -1 : 1) * ordered(column.by(a), column.by(b), down) || collator.compare(a.name, b.name);
  }
}

// Compare two values; what is not known comes last either way.
function ordered(a, b, down) {
  if (a === null || b === null) return (a === b ? 0 : a === null ? 1 : -1) * (down ? -1 : 1);
  return typeof a === "string" ? collator.compare(a, b) : a - b;
}

function matches(one, wanted) {
  return [one.name, one.state, one.engine, ...one.models].some((text) => text.toLowerCase().includes(wanted));
}
