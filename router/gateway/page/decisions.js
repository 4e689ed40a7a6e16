// The last decisions, newest first: rows are kept by request, and only change when it ends.

import { inWords } from "./causes.js";
import { arrange, find, make, setAttribute, setText, show } from "./dom.js";
import { NONE, clock, count } from "./format.js";

export class DecisionTable {
  #rows = new Map();
  #body;
  #open;

  // `open` is called with the id of a request that is to be explained.
  constructor(table, open) {
    this.#body = table.tBodies[0];
    this.#open = open;
  }

  update(decisions) {
    const rows = new Map();
    for (const one of decisions) {
      const key = `${one.at} ${one.request_id}`;
      rows.set(key, this.#rows.get(key) ?? this.#row(one));
      rows.get(key).update(one);
    }
    this.#rows = rows;
    arrange(this.#body, [...rows.values()].map((row) => row.element));
    show(find("undecided"), !decisions.length);
  }

  #row(one) {
    const request = make("button", { type: "button", class: "name", title: one.request_id }, one.request_id);
    request.addEventListener("click", () => this.#open(one.request_id));
    const chosen = make("td");
    const hit = make("td", { class: "number", "data-title": "hit" });
    const missed = make("td", { class: "wide missed quiet" });
    const element = make(
      "tr",
      {},
      make("td", { class: "time" }, clock(one.at)),
      make("th", { scope: "row", class: "request" }, request),
      make("td", { class: "wide" }, one.model),
      chosen,
      make("td", { class: "why" }, one.why),
      make("td", { class: "wide quiet" }, one.reason),
      make("td", { class: "number", "data-title": "expected" }, count(one.expected_tokens)),
      hit,
      missed,
    );
    return { element, update: (told) => ended(told, chosen, hit, missed) };
  }
}

function ended(told, chosen, hit, missed) {
  setText(chosen, told.replica && told.replica !== told.chosen ? `${told.chosen}, then ${told.replica}` : told.chosen);
  const failed = told.status !== null && told.result !== "ok";
  setText(hit, told.status === null ? "in flight" : failed ? words(told) : count(told.hit_tokens));
  setAttribute(hit, "title", told.status === null ? null : `of ${count(told.prompt_tokens)} prompt tokens`);
  hit.classList.toggle("off", failed);
  setText(missed, inWords(told.misses) || NONE);
}

const words = (told) => `${told.result.replaceAll("_", " ")} (${told.status})`;
