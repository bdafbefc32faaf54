// Rates from counters: differences within the last ten seconds.

const WINDOW = 10; // seconds

export class Rates {
  #samples = [];

  // Notes the counters (an object of numbers) of a date in seconds; `run` changes when they restart.
  note(at, run, counters) {
    const last = this.#samples.at(-1);
    const restarted = last && (last.run !== run || at < last.at
      || Object.entries(last.counters).some(([name, number]) => (counters[name] ?? 0) < number));
    if (restarted) this.#samples = [];
    this.#samples.push({ at, run, counters });
    while (this.#samples.length > 2 && this.#samples[1].at <= at - WINDOW) this.#samples.shift();
  }

  // Per second; null: not known yet.
  of(name) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (first === undefined || last.at <= first.at) return null;
    return ((last.counters[name] ?? 0) - (first.counters[name] ?? 0)) / (last.at - first.at);
  }
}
