// Dead letters of any queue: the queues that have some, a look at them, and a redrive of those that are chosen.

import { Rows, buttonOf, byId, element, nameRoles, setAttribute, setContent, setTerms, setText } from "./dom.js";
import { Refused } from "./gateway.js";
import { UNKNOWN, between, bytes, count, messages, span } from "./words.js";

const SAMPLES = 50;
const PREVIEW = 200; // bytes of a body
const MOST = 1000; // messages of one call
const LONG = 600000; // milliseconds: all dead letters of a queue are read
const RATE = 100; // messages a second, unless the operator says otherwise

const field = (text, control) => element("label", {}, `${text} `, control);
const input = (id, attributes = {}) => element("input", { id, spellcheck: "false", autocomplete: "off", ...attributes });
const text = (id, attributes = {}) => element("textarea", { id, rows: "2", spellcheck: "false", ...attributes });
const button = (id, name, attributes = {}) => element("button", { id, type: "button", ...attributes }, name);
const words = (id) => byId(id).value.split(/\s+/).filter(Boolean);
const sum = (groups, name) => groups.reduce((total, each) => total + each[name], 0);

const topicOf = (queue) => /^(.+)\/subscriptions\/[^/]+$/i.exec(queue)?.[1] ?? "";
const changesOf = ({ properties, without, body }) => [
  ...properties.map((each) => `, with ${each}`), ...without.map((each) => `, without ${each}`), body === undefined ? "" : ", with the new body",
].join("");

// A heading is a text, or a text with its class.
function table(id, label, ...headings) {
  const heads = headings.map((each) => [each].flat()).map(([name, kind]) => element("th", { scope: "col", ...(kind && { class: kind }) }, name));
  return element("div", { class: "scroll", role: "group", "aria-label": label, tabindex: "0", hidden: "" },
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", { id })));
}

function section() {
  return element("section", { id: "queue-letters", "aria-labelledby": "queue-letters-title", hidden: "" },
    element("h2", { id: "queue-letters-title" }, "Dead letters of a queue"),
    element("details", {},
      element("summary", {}, "Look at them, and move them back"),
      lookForm(),
      table("listed-rows", "Queues with dead letters", "queue or subscription", "dead letters", "look"),
      element("div", { id: "looked", hidden: "" },
        table("reason-rows", "The dead letters by reason", "reason", "messages", "the oldest is", "the newest is"),
        table("look-rows", "Some of the dead letters", "message id", "reason", "age", "size", "body", ["move", "steers"]),
        moveForm()),
      element("div", { class: "buttons" }, button("stop", "Stop", { hidden: "" })),
      element("p", { id: "move-note", role: "status" }),
      element("p", { id: "move-error", role: "alert" }),
      element("progress", { id: "move-progress", "aria-label": "Moved messages", hidden: "" }),
      element("dl", { id: "move-figures" })));
}

function lookForm() {
  return element("form", { id: "look-form", class: "wide" }, element("fieldset", {},
    element("div", { class: "fields" },
      field("Namespace", element("select", { id: "look-namespace" })),
      field("Queue or subscription", input("look-queue", { required: "" })),
      field("Only this reason", input("look-reason")),
      field("Only these message ids", input("look-ids"))),
    element("div", { class: "buttons" }, button("look", "Look", { type: "submit" }), button("list", "Which queues have dead letters?"))),
    element("p", { id: "look-note", role: "status" }),
    element("p", { id: "look-error", role: "alert" }));
}

function moveForm() {
  return element("form", { id: "move-form", class: "wide steers" },
    element("h3", {}, "Move them"),
    element("p", { id: "chosen" }),
    element("fieldset", {}, element("div", { class: "fields" },
      field("To (empty: back into the queue)", input("move-target")),
      field("Messages a second (empty: no limit)", input("move-rate", { type: "number", min: "1", step: "1", value: RATE, inputmode: "numeric" })),
      field("Set properties, a NAME=VALUE in each line", text("move-set")),
      field("Remove properties, by their names", input("move-unset")),
      field("Reason, for the log", input("move-reason", { maxlength: "200" })),
      element("div", {},
        element("label", { class: "choice" }, element("input", { id: "move-new-body", type: "checkbox" }), " Replace each body by this text"),
        text("move-body", { "aria-label": "The new body", disabled: "" }))),
    element("div", { class: "buttons" }, button("try", "Dry run", { type: "submit" }), button("move", "Move", { class: "strong", disabled: "" }))));
}

class QueueLetters {
  #gateway;
  #at = null; // the date of the status, by which ages are told
  #names = ""; // of the namespaces that can be chosen
  #looks = 0;
  #looked = {}; // what the last look has asked for
  #plan = null; // the order of the last dry run; null: something has changed since
  #moves = false; // messages are being moved
  #stops = false; // after the call in progress
  #listed;
  #groups;
  #samples;

  constructor(gateway, place) {
    this.#gateway = gateway;
    place.append(section());
    nameRoles();
    const cell = (kind) => element("td", kind ? { class: kind } : {});
    const head = () => element("th", { scope: "row" });
    this.#listed = new Rows(byId("listed-rows"), ({ entity }) => {
      const tools = cell("short acts");
      tools.append(buttonOf("Look", `Look at the dead letters of ${entity}`, () => this.#choose(entity)));
      return [head(), cell("short"), tools];
    });
    this.#groups = new Rows(byId("reason-rows"), () => [head(), cell("short"), cell("short"), cell("short")]);
    this.#samples = new Rows(byId("look-rows"), (each) => [head(), cell(), cell("short"), cell("short"), cell("body"), this.#tick(each)]);
    this.#listen();
  }

  note({ at, namespaces }, actions) {
    this.#at = at;
    byId("queue-letters").hidden = namespaces.length === 0 || !(actions.has("redrive") || document.body.hasAttribute("data-reads"));
    const names = namespaces.map((each) => each.name);
    if (names.join() === this.#names) return;
    this.#names = names.join();
    setContent(byId("look-namespace"), ...names.map((name) => element("option", {}, name)));
    byId("look-namespace").value = namespaces.find((each) => each.role === "primary")?.name ?? names[0];
  }

  #listen() {
    const on = (id, kind, act) => byId(id).addEventListener(kind, act);
    const submit = (id, act) => on(id, "submit", (event) => {
      event.preventDefault();
      act();
    });
    submit("look-form", () => this.#look());
    submit("move-form", () => this.#try());
    on("look-form", "input", () => this.#forget());
    on("look-namespace", "change", () => this.#hide("listed-rows"));
    on("list", "click", () => this.#list());
    on("move-form", "input", () => this.#change());
    on("look-rows", "input", () => this.#change());
    on("move-new-body", "change", () => {
      byId("move-body").disabled = !byId("move-new-body").checked;
    });
    on("move", "click", () => this.#move());
    on("stop", "click", () => {
      this.#stops = true;
      byId("stop").disabled = true;
    });
  }

  #tick({ message_id: id }) {
    const box = element("input", { type: "checkbox", value: id, "aria-label": id ? `Move ${id}` : "It has no id to choose it by" });
    box.disabled = id === "";
    return element("td", { class: "short acts steers" }, box);
  }

  #hide(rows) {
    byId(rows).closest(".scroll").hidden = true;
  }

  // Shows a list if it has rows.
  #show(rows, body, items, fill) {
    rows.show(items, fill);
    byId(body).closest(".scroll").hidden = items.length === 0;
  }

  #forget() {
    byId("looked").hidden = true;
    for (const id of ["look-note", "look-error"]) setText(byId(id), "");
  }

  async #ask(note, act) {
    setText(byId("look-note"), note);
    setText(byId("look-error"), "");
    try {
      await act();
    } catch (error) {
      setText(byId("look-note"), "");
      setText(byId("look-error"), `That can't be shown: ${error.message}.`);
    }
  }

  #list() {
    const namespace = byId("look-namespace").value;
    return this.#ask(`The queues of ${namespace} are being listed.`, async () => {
      const { entities, total } = await this.#gateway.get(`/v1/dead-letters?namespace=${encodeURIComponent(namespace)}`, LONG);
      const more = entities.length < total ? `, ${count(entities.length)} of them listed` : "";
      setText(byId("look-note"), total ? `${count(total)} with dead letters${more}.` : `No queue of ${namespace} has dead letters.`);
      this.#show(this.#listed, "listed-rows", entities.map((each) => [each.entity, each]), (row, each) => {
        setText(row[0], each.entity);
        setText(row[1], count(each.messages));
      });
    });
  }

  #choose(entity) {
    byId("look-queue").value = entity;
    this.#hide("listed-rows");
    byId("look").focus();
    this.#look();
  }

  #look() {
    const reason = byId("look-reason").value.trim();
    const look = {
      namespace: byId("look-namespace").value, queue: byId("look-queue").value.trim(), ids: words("look-ids"),
      selection: { reasons: reason ? [reason] : [] },
    };
    byId("looked").hidden = true;
    return this.#ask(`The dead letters of ${look.queue} are being read.`, async () => {
      const found = await this.#gateway.post("/v1/redrive", { ...look, peek: SAMPLES, preview: PREVIEW }, LONG);
      this.#looked = look;
      byId("move-target").value = topicOf(look.queue); // a subscription can't be sent to
      byId("move-target").required = topicOf(look.queue) !== "";
      this.#tell(found);
    });
  }

  #tell({ groups, samples, problems }) {
    const total = sum(groups, "messages");
    const some = samples.length < total ? `, ${count(samples.length)} of them below` : "";
    setText(byId("look-note"), [`${this.#looked.queue} has ${count(total)} dead ${total === 1 ? "letter" : "letters"}${some}.`, ...problems].join(" "));
    const age = (date) => (date === null ? UNKNOWN : `${span(between(date, this.#at))} old`);
    this.#show(this.#groups, "reason-rows", groups.map((each) => [each.reason, each]), (row, each) => {
      [each.reason, count(each.messages), age(each.oldest), age(each.newest)].forEach((value, index) => setText(row[index], value));
    });
    this.#looks += 1; // no tick stays
    this.#show(this.#samples, "look-rows", samples.map((each, index) => [`${this.#looks} ${index}`, each]), (row, each) => {
      const body = each.body === null ? UNKNOWN : `${each.body}${each.size > PREVIEW ? "…" : ""}`;
      const values = [each.message_id || UNKNOWN, each.reason, span(between(each.enqueued, this.#at)), bytes(each.size), body];
      values.forEach((value, index) => setText(row[index], value));
    });
    byId("looked").hidden = total === 0;
    byId("move-progress").hidden = true;
    setContent(byId("move-figures"));
    this.#change();
  }

  #ticked() {
    return [...byId("look-rows").querySelectorAll("input:checked")].map((each) => each.value);
  }

  // What was tried is no longer what would be moved. A choice made during a move is for the next one.
  #change() {
    if (this.#moves) return;
    this.#plan = null;
    byId("move").disabled = true;
    setText(byId("move"), "Move");
    for (const id of ["move-note", "move-error"]) setText(byId(id), "");
    const ticked = this.#ticked().length;
    setText(byId("chosen"), ticked ? `${messages(ticked)} chosen.` : "All that the filters above match; choose some by their boxes.");
  }

  #order() {
    const ticked = this.#ticked();
    return {
      ...this.#looked,
      ids: ticked.length ? [...new Set(ticked)] : this.#looked.ids,
      target: byId("move-target").value.trim(),
      properties: byId("move-set").value.split("\n").map((line) => line.trim()).filter(Boolean),
      without: words("move-unset"),
      ...(byId("move-new-body").checked ? { body: byId("move-body").value } : {}),
    };
  }

  async #try() {
    this.#change();
    setText(byId("move-note"), "The dead letters are being counted.");
    const order = this.#order();
    // A message that is dead-lettered again meanwhile isn't moved again, where that can be known.
    const before = this.#at;
    try {
      const { groups, problems } = await this.#gateway.post("/v1/redrive", order, LONG);
      const total = sum(groups, "moves");
      const dated = groups.every((each) => each.oldest !== null);
      this.#plan = { order: dated ? { ...order, selection: { ...order.selection, before } } : order, total };
      const rest = sum(groups, "messages") - total;
      setText(byId("move-note"), [`${messages(total)} would be moved to ${order.target || order.queue}${changesOf(order)}.`,
        ...(rest ? [`${messages(rest)} would stay: those that have expired are moved only by their reason.`] : []), "Nothing has changed yet.", ...problems].join(" "));
      setText(byId("move"), `Move ${messages(total)}`);
      byId("move").disabled = total === 0;
    } catch (error) {
      setText(byId("move-note"), "");
      setText(byId("move-error"), `That can't be tried: ${error.message}.`);
    }
  }

  #busy(is) {
    this.#moves = is;
    for (const each of byId("queue-letters").querySelectorAll("fieldset")) each.disabled = is;
    this.#hide("listed-rows");
    byId("stop").hidden = !is;
    byId("stop").disabled = false;
    byId(is ? "stop" : "try").focus();
  }

  async #move() {
    const { order, total } = this.#plan;
    const rate = Number(byId("move-rate").value) || null;
    const most = rate === null ? MOST : Math.min(MOST, Math.max(1, Math.floor(rate))); // of a second
    const reason = byId("move-reason").value;
    const done = { moved: 0, unknown: 0, problems: [] };
    this.#stops = false;
    this.#busy(true);
    let limit = 0;
    try {
      do {
        limit = Math.min(most, total - done.moved);
        const part = await this.#gateway.post("/v1/redrive", { ...order, reason, rate, most: limit, executes: true }, LONG);
        done.moved += part.moved;
        done.unknown += part.unknown;
        done.problems = [...new Set([...done.problems, ...part.problems])];
        this.#report(done, total);
        if (part.moved < limit) break;
      } while (done.moved < total && !this.#stops);
    } catch (error) {
      // Without its answer, the messages of this call may have been moved.
      if (!(error instanceof Refused)) done.unknown += limit;
      done.problems.push(`The gateway didn't confirm the last ${messages(limit)}: ${error.message}.`);
    }
    this.#busy(false);
    this.#change();
    this.#report(done, total);
    setText(byId("move-note"), [this.#stops && done.moved < total ? "Stopped." : "Done.", ...done.problems].join(" "));
  }

  #report({ moved, unknown }, total) {
    const progress = byId("move-progress");
    progress.hidden = false;
    setAttribute(progress, "max", total);
    setAttribute(progress, "value", moved);
    setTerms(byId("move-figures"), [
      ["moved", `${count(moved)} of ${count(total)}`], ["not moved", count(total - moved - unknown)], ["unknown", count(unknown)],
    ]);
  }
}

// Begins to show them at the end of `place`; the page calls `note` with each status.
export const start = ({ gateway, place }) => new QueueLetters(gateway, place);
