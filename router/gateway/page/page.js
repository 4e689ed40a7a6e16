// Asks the router how it does every two seconds, and shows it.

import { Poll, Problem, ask } from "./ask.js";
import { Causes, total } from "./causes.js";
import { DecisionTable } from "./decisions.js";
import { find, make, setAttribute, setText, show } from "./dom.js";
import { ExplainForm } from "./explain.js";
import { History } from "./figures.js";
import { FleetTable } from "./fleet.js";
import { clock, count, duration } from "./format.js";
import { Tiles } from "./tiles.js";

const LOOK_MILLISECONDS = 2000;
const DECISIONS = 50;
const TURNED_OFF = "This router does not tell: it must run with observe.explain = true (in its file, or KVRING_OBSERVE__EXPLAIN=true). It is off by default, as whoever reaches the port could ask which prefixes are cached.";

class Page {
  #history = new History();
  #tiles = new Tiles(find("tiles"));
  #fleet = new FleetTable(find("replicas"));
  #causes = new Causes(find("misses"));
  #form = new ExplainForm(find("explain"));
  #decisions = new DecisionTable(find("decisions").querySelector("table"), (id) => this.#form.open(id));
  #facts = new Map();
  #answered = null;

  async look() {
    try {
      const told = await ask("debug/fleet");
      const explains = told.router.explains;
      const decided = explains ? (await ask(`debug/decisions?limit=${DECISIONS}`)).decisions : [];
      this.#history.take(told);
      this.#answered = Date.now() / 1000;
      this.show();
      this.#decisions.update(decided);
      setText(find("decided"), explains ? `the last ${count(decided.length)}` : "");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#lost(error.message);
    }
  }

  // Show what was told last.
  show() {
    if (this.#answered === null) return;
    const minute = document.querySelector("#span input:checked").value === "minute";
    const figures = this.#history.figures(minute);
    this.#standing(figures.router);
    this.#introduce(figures.router);
    this.#tiles.update(figures);
    this.#fleet.update(figures);
    this.#causes.update(figures.totals.uncached);
    setText(find("missed"), `${count(total(figures.totals.uncached))} of ${count(figures.totals.prompt_tokens)} prompt tokens`);
    this.#explaining(figures.router.explains);
    this.#form.serves(figures.replicas.find((one) => one.models.length)?.models[0]);
    show(find("lost"), false);
    show(find("live"), true);
  }

  #standing(router) {
    const standing = router.draining ? "draining" : router.ready ? "ready" : "not ready";
    setText(find("standing"), standing);
    setAttribute(find("standing"), "data-state", { ready: "ready", draining: "draining" }[standing] ?? "down");
    document.title = standing === "ready" ? "kvring" : `kvring: ${standing}`;
  }

  #introduce(router) {
    for (const [title, text, bad] of introduction(router)) {
      if (!this.#facts.has(title)) {
        const value = make("dd");
        const element = make("div", {}, make("dt", {}, title), value);
        this.#facts.set(title, { element, value });
        find("facts").append(element);
      }
      const { element, value } = this.#facts.get(title);
      setText(value, text);
      value.classList.toggle("off", Boolean(bad));
      show(element, Boolean(text));
    }
  }

  #explaining(explains) {
    for (const notice of document.querySelectorAll("[data-needs-explain]")) {
      setText(notice, TURNED_OFF);
      show(notice, !explains);
    }
    show(find("decisions"), explains);
    show(find("explain"), explains);
    if (!explains) show(find("explained"), false);
  }

  // Old figures would look like new ones: they go until the router answers again.
  #lost(reason) {
    const since = this.#answered === null ? "since this page was opened" : `since ${clock(this.#answered)}`;
    setText(find("lost"), `No answer ${since}: ${reason}. This page keeps asking.`);
    show(find("lost"), true);
    show(find("live"), false);
    setText(find("standing"), "no answer");
    setAttribute(find("standing"), "data-state", "down");
    document.title = "kvring: no answer";
  }
}

function introduction(router) {
  const { taken, refused, current } = router.reloads;
  const sources = router.sources.filter(({ members }) => members !== 0);
  const silent = sources.some(({ members }) => members === null);
  return [
    ["Policy", router.policy],
    ["Version", router.version],
    ["Run", router.run],
    ["Up", duration(router.uptime_seconds)],
    ["Worker", router.worker ? `${router.worker.number} of ${router.worker.count}; counts are of all` : ""],
    ["Members from", sources.map(({ kind, members }) => `${kind} (${members ?? "no answer"})`).join(", "), silent],
    ["Redis", router.redis_up === null ? "" : router.redis_up ? "up" : "no answer", router.redis_up === false],
    ["Options", current ? (taken ? `reloaded ${count(taken)} ×` : "") : `a change was refused (${count(refused)} ×)`, !current],
  ];
}

const page = new Page();
const poll = new Poll(() => page.look(), LOOK_MILLISECONDS);
find("span").addEventListener("change", () => page.show());
find("pause").addEventListener("click", ({ currentTarget: button }) => {
  const paused = button.getAttribute("aria-pressed") !== "true";
  setAttribute(button, "aria-pressed", String(paused));
  setText(button, paused ? "Resume" : "Pause");
  poll.pause(paused);
});
poll.start();
