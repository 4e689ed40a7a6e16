// The tiles: a few figures that say how the fleet does.

import { make, setShare, setText, show } from "./dom.js";
import { busiest, median, sum } from "./figures.js";
import { NONE, count, percent, points, rate, seconds } from "./format.js";

const TILES = [
  { name: "rate", title: "Requests a second", told: requests },
  { name: "hits", title: "Hit ratio", told: hits },
  { name: "ttft", title: "TTFT, median", told: firstBytes },
  { name: "waiting", title: "Waiting", told: waiting },
  { name: "busiest", title: "Busiest replica's share", told: busiestShare },
];

export class Tiles {
  #tiles;

  constructor(parent) {
    this.#tiles = TILES.map((tile) => {
      const parts = { value: make("span", { class: "value" }), note: make("span", { class: "note" }), bar: make("span", { class: "bar" }) };
      parent.append(
        make("div", { class: "tile", "data-tile": tile.name }, make("dt", {}, tile.title), make("dd", {}, parts.value, parts.bar, parts.note)),
      );
      return { ...tile, ...parts };
    });
  }

  update(figures) {
    for (const tile of this.#tiles) {
      const { value, note, share } = tile.told(figures);
      setText(tile.value, value);
      setText(tile.note, note);
      show(tile.bar, share !== undefined);
      setShare(tile.bar, share ?? 0);
    }
  }
}

function requests({ totals, router }) {
  return { value: rate(totals.rate), note: `${count(totals.requests)} served, ${count(router.in_flight)} in flight` };
}

function hits({ totals }) {
  const { hit_ratio, expected_ratio, against } = totals;
  const note = against === null ? "nothing told yet" : `${percent(expected_ratio)} expected, ${points(against)} points`;
  return { value: percent(hit_ratio), note, share: hit_ratio ?? 0 };
}

function firstBytes({ totals }) {
  const middle = median(totals.first_bytes);
  return {
    value: middle === null ? NONE : `≈ ${seconds(middle)}`,
    note: `${count(totals.first_bytes.at(-1)?.[1] ?? 0)} streamed chats`,
  };
}

function waiting({ replicas, router }) {
  const queued = sum(replicas, "waiting");
  return {
    value: count((queued ?? 0) + router.waiting),
    note: `${count(queued)} at replicas, ${count(router.waiting)} for a replica`,
  };
}

function busiestShare({ replicas }) {
  const most = busiest(replicas);
  const fair = replicas.length ? ` (even: ${percent(1 / replicas.length)})` : "";
  return { value: percent(most?.share ?? null), note: most ? most.name + fair : "nobody served yet", share: most?.share ?? 0 };
}
