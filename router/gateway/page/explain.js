// The form that asks where a request would go, and why.

import { Problem, ask } from "./ask.js";
import { find, setText, show } from "./dom.js";
import { explained } from "./explained.js";

export class ExplainForm {
  #model = "a-model";
  #asked = 0;

  constructor(form) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#explain("debug/explain", { method: "POST", headers: { "Content-Type": "application/json" }, body: find("body").value });
    });
    find("body").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    find("example").addEventListener("click", () => this.#fill());
    this.#fill();
  }

  // Take a model that is served, for the example.
  serves(model) {
    if (!model || model === this.#model) return;
    const untouched = find("body").value === this.#example();
    this.#model = model;
    if (untouched) this.#fill();
  }

  // Explain a request that has come in before.
  async open(requestId) {
    await this.#explain(`debug/explain/${encodeURIComponent(requestId)}`);
    find("explained").focus();
  }

  #example() {
    const messages = [
      { role: "system", content: "You are a helpful assistant." },
      { role: "user", content: "What is the capital of France?" },
    ];
    return JSON.stringify({ model: this.#model, messages }, null, 2);
  }

  #fill() {
    find("body").value = this.#example();
  }

  async #explain(path, options = {}) {
    const turn = ++this.#asked;
    let parts = [];
    let problem = "";
    try {
      parts = explained(await ask(path, options));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      problem = error.message;
    }
    // A later question may have been answered first.
    if (turn !== this.#asked) return;
    setText(find("explain-error"), problem && `It cannot be explained: ${problem}.`);
    find("explained").replaceChildren(...parts);
    show(find("explained"), parts.length > 0);
  }
}
