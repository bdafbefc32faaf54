// Dead letters of the backlog: by reason and entity, with some samples. Bodies are never asked for.

import { Rows, byId, element, setAttribute, setText } from "./dom.js";
import { UNKNOWN, between, bytes, count, messages, span } from "./words.js";

const SAMPLES = 20;
const PATIENCE = 120000; // milliseconds: all dead letters are read
const UNREADABLE = "(not readable)";
const cell = (kind) => element("td", kind ? { class: kind } : {});
const head = () => element("th", { scope: "row" });

export class Letters {
  #gateway;
  #steer; // from a reason and an entity (null: not readable): opens the dialog of a redrive
  #at = null; // the date of the status, by which ages are told
  #groups;
  #samples;

  constructor(gateway, steer) {
    this.#gateway = gateway;
    this.#steer = steer;
    this.#groups = new Rows(byId("letter-groups"), (group) => this.#row(group));
    this.#samples = new Rows(byId("letter-samples"), () => [head(), cell(), cell(), cell("short"), cell("short")]);
    byId("letters").addEventListener("toggle", () => {
      if (byId("letters").open) this.read();
    });
  }

  // `status` is the last one; the dead letters are read when the list is opened.
  note(status) {
    this.#at = status.at;
    byId("letters").hidden = !status.pair.backlog.dead_letters.messages;
  }

  async read() {
    setText(byId("letters-note"), "The dead letters are being read.");
    try {
      this.#show(await this.#gateway.post("/v1/redrive", { selection: {}, peek: SAMPLES }, PATIENCE));
    } catch (error) {
      setText(byId("letters-note"), `The dead letters can't be read: ${error.message}.`);
    }
  }

  #row(group) {
    const tools = cell("short acts steers");
    const button = element("button", { type: "button" }, "Redrive…");
    button.addEventListener("click", () => this.#steer(group.reason, group.entity));
    setAttribute(button, "aria-label", `Redrive ${group.reason} of ${group.entity ?? UNREADABLE}…`);
    tools.append(button);
    return [head(), cell(), cell("short"), cell("short"), cell(), tools];
  }

  #show({ groups, samples, problems }) {
    const total = groups.reduce((sum, each) => sum + each.messages, 0);
    const shown = samples.length < total ? `, ${count(samples.length)} of them listed` : "";
    setText(byId("letters-note"), [`${messages(total)}${shown}, without their bodies.`, ...problems].join(" "));
    this.#groups.show(groups.map((each) => [JSON.stringify([each.reason, each.entity]), each]), (row, each) => {
      const values = [each.entity ?? UNREADABLE, each.reason, count(each.messages), each.oldest === null ? UNKNOWN : `${span(between(each.oldest, this.#at))} old`, each.problem];
      values.forEach((value, index) => setText(row[index], value));
      row[5].firstChild.hidden = each.entity === null;
    });
    this.#samples.show(samples.map((each, index) => [`${index} ${each.message_id}`, each]), (row, each) => {
      const values = [each.message_id || UNKNOWN, each.entity ?? UNREADABLE, each.reason, span(between(each.enqueued, this.#at)), bytes(each.size)];
      values.forEach((value, index) => setText(row[index], value));
    });
  }
}
