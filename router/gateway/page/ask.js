// Asks the router; whatever goes wrong ends in a Problem that says what in plain words.

const LONGEST_MILLISECONDS = 5000;

export class Problem extends Error {}

// Ask for JSON at a path beside this page.
export async function ask(path, options = {}) {
  let response, answer;
  try {
    response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(LONGEST_MILLISECONDS), ...options });
    answer = await response.json();
  } catch {
    throw new Problem(response ? `the router's answer (${response.status}) cannot be read` : "the router gives no answer");
  }
  if (!response.ok) throw new Problem(answer?.error?.message ?? `the router answers ${response.status}`);
  return answer;
}

// Calls `look` every so often while the page can be seen and is not paused.
export class Poll {
  #look;
  #milliseconds;
  #paused = false;
  #running = false;
  #timer = null;

  constructor(look, milliseconds) {
    this.#look = look;
    this.#milliseconds = milliseconds;
    document.addEventListener("visibilitychange", () => this.start());
  }

  pause(paused) {
    this.#paused = paused;
    this.start();
  }

  // Look now, unless nobody looks on.
  async start() {
    clearTimeout(this.#timer);
    if (this.#running || this.#paused || document.hidden) return;
    this.#running = true;
    try {
      await this.#look();
    } finally {
      this.#running = false;
    }
    if (!this.#paused && !document.hidden) this.#timer = setTimeout(() => this.start(), this.#milliseconds);
  }
}
