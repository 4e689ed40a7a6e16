// An explanation as people read it: the prompt, each replica's place, and what came of it.

import { inWords } from "./causes.js";
import { make } from "./dom.js";
import { NONE, count, seconds } from "./format.js";

// A large fleet's ranking is shown so far at first.
const FIRST_PLACES = 12;
const TITLES = ["Place", "Replica", "Expected hit", "In digest", "Wait", "Prefill", "Score", "Reason"];

// Return the elements that show an explanation.
export function explained(told) {
  const parts = [make("h3", {}, heading(told)), make("p", { class: "why" }, told.why), facts(told), ...ranking(told)];
  if (told.outcome) parts.push(outcome(told.outcome));
  return parts;
}

function heading(told) {
  if (!told.chosen) return "No replica can take it now";
  return told.runner_up ? `${told.chosen} before ${told.runner_up}` : told.chosen;
}

function facts(told) {
  const depth = told.blocks ? `${count(told.blocks)} ${told.blocks === 1 ? "block" : "blocks"} of ${told.block_tokens} tokens` : "not named";
  return list([
    ["Policy", told.policy],
    ["Model", told.model],
    ["Prompt", `${count(told.prompt_tokens)} tokens`],
    ["Chain", `${depth}, by ${told.tier}`],
    ["Instructions", `${count(told.preamble_tokens)} tokens`],
    ["Seen before", `${count(told.seen_tokens)} tokens`],
  ]);
}

const list = (facts) =>
  make("dl", { class: "facts" }, ...facts.map(([title, text]) => make("div", {}, make("dt", {}, title), make("dd", {}, text))));

function ranking(told) {
  const rows = told.ranking.map(place);
  const body = make("tbody", {}, ...rows.slice(0, FIRST_PLACES));
  const heads = TITLES.map((title, index) => make("th", { scope: "col", class: kind(index) }, title));
  const caption = make("caption", { class: "unseen" }, "The ranking, best first");
  const table = make("table", { class: "ranking" }, caption, make("thead", {}, make("tr", {}, ...heads)), body);
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "The ranking" }, table);
  if (rows.length <= FIRST_PLACES) return [scroll];
  const more = make("button", { type: "button" }, `Show all ${count(rows.length)}`);
  more.addEventListener("click", () => {
    body.append(...rows.slice(FIRST_PLACES));
    more.remove();
  });
  return [scroll, more];
}

function place(one) {
  const texts = [
    String(one.place),
    one.replica,
    count(one.expected_tokens),
    count(one.digest_tokens),
    seconds(one.wait_seconds),
    seconds(one.prefill_seconds),
    Number(one.score.toPrecision(4)).toString(),
    one.reason || NONE,
  ];
  const cells = texts.map((text, index) => make(index === 1 ? "th" : "td", index === 1 ? { scope: "row" } : { class: kind(index) }, text));
  return make("tr", {}, ...cells);
}

const kind = (index) => (index === 1 || index === 7 ? "" : "number");

function outcome(told) {
  const attempts = told.attempts > 1 ? ` after ${told.attempts} attempts` : "";
  return make(
    "div",
    {},
    make("h3", {}, "What came of it"),
    list([
      ["Request", told.request_id],
      ["Answer", `${told.result.replaceAll("_", " ")} (${told.status}) from ${told.replica ?? "nobody"}${attempts}`],
      ["Hit tokens", `${count(told.hit_tokens)}, ${count(told.expected_tokens)} expected`],
      [told.streamed ? "First token" : "Whole answer", `${seconds(told.first_byte_seconds)}, ${seconds(told.predicted_seconds)} predicted to the first token`],
      ["Missed", inWords(told.misses) || "nothing told"],
    ]),
  );
}
