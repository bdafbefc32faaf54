// Steering: each button opens a dialog that names the consequence, and asks for what the order needs.

import { byId, element, setContent, setText } from "./dom.js";
import { Lost, Refused } from "./gateway.js";
import { reachOf } from "./tables.js";
import { count, messages } from "./words.js";

const all = (targets) => targets.includes("*");
const named = (targets) => (all(targets) ? "all entities" : targets.join(", ") || "no entity");
const items = (texts) => element("ul", {}, ...texts.map((text) => element("li", {}, text)));

const MOST_REDRIVEN = 1000; // messages of one call
const DRILL_SECONDS = 30; // unless the gateway allows less
const LONG = 600000; // milliseconds: a drain, or a purge of a whole queue
const FIELDS = ["targets", "namespace", "fault", "seconds", "part", "typed", "end", "reason"];

function redriven({ moved, left, problems }) {
  const kept = left ? `, ${left} couldn't be moved: ${problems.join("; ")}` : "";
  return `${moved} moved${kept}.${moved + left >= MOST_REDRIVEN ? " There may be more." : ""}`;
}

function reloaded({ changed, after, needs_restart: restarts, warnings }) {
  return items([
    `${changed ? "Applied" : "Nothing had changed"}: the log level is ${after.log_level}, the access policies are ${after.access.join(", ") || "none"}.`,
    restarts.length ? `These sections need a restart: ${restarts.join(", ")}.` : "Nothing needs a restart.",
    ...warnings.map((text) => `Warning: ${text}`),
  ]);
}

function ordered({ targets }, { changed, after }) {
  const left = after.not_reached.length ? ` ${reachOf(after)}` : "";
  return `the order for ${named(targets)} ${changed ? "is in effect" : "was in effect already"}.${left}`;
}

function drained({ changed, report }) {
  if (!changed || report === null) return "It drains already.";
  const [finished, left] = [count(report.finished), count(report.left)];
  return `Drained in ${report.seconds} s: ${finished} ${report.unit} finished, ${left} cut off. The process ends now.`;
}

const FAULTS = {
  refuse: "each operation fails at once", hang: "no operation is answered", slow: "each operation is 2 s late", busy: "it asks to wait for 2 s",
};

// Per action: its name on buttons, the fields of its dialog, and its consequence. With `consent` the user types that name. An action that isn't an order with
// targets has a body, and words for its answer, of its own. Where `stays` is set, the dialog shows the answer.
const ACTIONS = {
  failover: {
    title: "Fail over",
    fields: ["targets", "end", "reason"],
    consequence: ({ targets }, { primary, secondary }) => `New sends to ${named(targets)} go to the backlog on ${secondary}, even while ${primary} works. `
      + `Receivers on ${primary} get these messages only after you have failed back and the syphon has moved them.`,
  },
  failback: {
    title: "Fail back",
    fields: ["targets", "reason"],
    consequence: ({ targets }, { primary }) => `New sends to ${named(targets)} go to ${primary} at once, and their failures are counted from zero. `
      + `If ${primary} still fails, sends wait or fail until the entities fail over again.`,
  },
  pause: {
    title: "Pause the syphon",
    fields: ["targets", "end", "reason"],
    consequence: ({ targets }, { primary, secondary }) => `The syphon of this process moves nothing to ${primary} for ${named(targets)}: `
      + `their backlog stays on ${secondary}, and its messages age. Live traffic goes on.`,
  },
  resume: {
    title: "Resume the syphon",
    fields: ["targets", "reason"],
    consequence: ({ targets }, { primary }) => `The syphon moves the backlog of ${named(targets)} to ${primary} again: ${primary} gets that load in addition to live traffic.`,
  },
  redrive: {
    title: "Redrive dead letters",
    fields: ["targets"],
    consequence: ({ targets }, { primary }, { reason, entity }) => `Up to ${MOST_REDRIVEN} dead letters of ${entity ?? named(targets)}${reason ? ` with the reason ${reason}` : ""} `
      + `go back to the backlog, and the syphon sends them to ${primary}. Fix the cause first, or they become dead letters again. `
      + (reason ? "" : "Expired messages stay where they are."),
    body: ({ targets }, { reason, entity }) => ({
      selection: { entities: entity ? [entity] : all(targets) ? [] : targets, reasons: reason ? [reason] : [] }, executes: true, most: MOST_REDRIVEN,
    }),
    told: redriven,
  },
  purge: {
    title: "Purge",
    fields: ["part", "typed", "reason"],
    consequence: (_, { primary }, { queue, found }) => (found === null ? `The messages of ${queue} are being counted.`
      : `${messages(found)} of ${queue} ${found === 1 ? "is" : "are"} deleted for good. Pairgate accepted them for ${primary}, and they never arrive there. `
        + "Messages that come meanwhile stay."),
    body: ({ typed, part, reason }, { queue, found }) => ({ queue, dead_letters: part === "dead", confirm: typed, messages: found, reason }),
    told: ({ purged, left }) => `${messages(purged)} deleted${left ? `, ${count(left)} left that others had locked` : ""}.`,
    consent: (_, { queue }) => queue,
    ready: ({ found }) => found !== null,
    patience: LONG,
  },
  drill: {
    title: "Rehearse an outage",
    fields: ["namespace", "targets", "fault", "seconds", "typed", "reason"],
    consequence: ({ targets, namespace, fault, seconds }, { primary }) => `For ${seconds || "…"} s this gateway behaves as if `
      + `${all(targets) ? namespace : `${named(targets)} of ${namespace}`} had an outage: ${FAULTS[fault]}. ${namespace} itself isn't touched, and others use it as before. `
      + (namespace === primary ? "Real sends go to the backlog, and come home after it." : "Sends have no net meanwhile: if the primary fails, too, they fail."),
    body: ({ targets, namespace, fault, seconds, reason }) => ({ targets, namespace, fault, seconds: Number(seconds), reason }),
    consent: ({ namespace }) => namespace,
    told: ({ after }) => `${after.drill.namespace} is cut off until ${new Date(after.drill.until).toLocaleTimeString("en-GB")}.`,
  },
  reload: {
    title: "Reload the configuration",
    fields: ["reason"],
    consequence: () => "The process reads its configuration again. Log level, access policies, accounts, issuers, envelope keys and certificates take effect at once: clients whose policy is gone are refused. "
      + "If anything is wrong, nothing is changed.",
    body: ({ reason }) => ({ reason }),
    told: reloaded,
    stays: true,
  },
  drain: {
    title: "Drain and end",
    fields: ["reason"],
    consequence: () => "The process accepts nothing more, finishes what is in progress, and ends. Its clients must find another gateway, and this page loses it. "
      + "Only whoever started it (for example systemd) starts it again.",
    body: ({ reason }) => ({ reason, wait: true }),
    told: drained,
    stays: true,
    patience: LONG,
  },
};

export class Orders {
  #gateway;
  #names; // of the namespaces, when the dialog opens
  #action = "";
  #about = {}; // what the order is about, beside the fields
  #done; // called after an order with its answer in words

  constructor(gateway, done) {
    this.#gateway = gateway;
    this.#done = done;
    byId("order-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#give();
    });
    byId("cancel").addEventListener("click", () => byId("order").close());
    for (const id of ["targets", "namespace", "fault", "seconds", "typed"]) byId(id).addEventListener("input", () => this.#explain());
    byId("part").addEventListener("input", () => this.#count());
    byId("end").addEventListener("change", () => {
      byId("date-field").hidden = byId("end").value !== "at";
      byId("date").required = byId("end").value === "at";
    });
  }

  // `about`: the `reason` and the `entity` of dead letters, the backlog `queue` of a purge, or the `longest` drill in seconds.
  open(action, target, names, about = {}) {
    this.#action = action;
    this.#names = names;
    this.#about = about;
    const { title } = ACTIONS[action];
    const fields = about.entity ? [] : ACTIONS[action].fields; // its name may be anything
    byId("order-form").reset();
    for (const [id, text] of [["order-title", title], ["confirm", title], ["cancel", "Cancel"], ["order-error", ""]]) setText(byId(id), text);
    setContent(byId("order-result"));
    for (const name of FIELDS) byId(`${name}-field`).hidden = !fields.includes(name);
    setContent(byId("namespace"), ...[names.primary, names.secondary].map((name) => element("option", {}, name)));
    byId("namespace").value = names.primary;
    byId("targets").value = target;
    byId("targets").required = fields.includes("targets");
    byId("seconds").value = Math.min(DRILL_SECONDS, about.longest ?? DRILL_SECONDS);
    byId("seconds").max = about.longest ?? "";
    byId("seconds").required = fields.includes("seconds");
    byId("date-field").hidden = true;
    byId("date").required = false;
    byId("force-field").hidden = true; // until an order is refused as nobody knows its entity
    byId("confirm").hidden = false;
    this.#explain();
    byId("order").showModal();
    if (action === "purge") this.#count();
    byId(["typed", "reason", "targets", "cancel"].find((id) => id === "cancel" || fields.includes(id))).focus();
  }

  #fields() {
    const texts = Object.fromEntries(["namespace", "fault", "seconds", "part", "typed", "reason"].map((id) => [id, byId(id).value]));
    return { ...texts, targets: byId("targets").value.split(/\s+/).filter(Boolean) };
  }

  #explain() {
    const { consequence, consent = () => "", ready = () => true } = ACTIONS[this.#action];
    const fields = this.#fields();
    const name = consent(fields, this.#about);
    setText(byId("consequence"), consequence(fields, this.#names, this.#about));
    setText(byId("typed-label"), `Type ${name} to go on`);
    byId("confirm").disabled = fields.typed !== name || !ready(this.#about);
  }

  // Asks how many messages a purge would delete: no more are deleted than the operator has seen.
  async #count() {
    const about = { ...this.#about, found: null };
    this.#about = about;
    this.#explain();
    try {
      const dead = byId("part").value === "dead";
      const { messages: found } = await this.#gateway.post("/v1/purge", { queue: about.queue, dead_letters: dead });
      if (this.#about !== about) return; // another one was asked for
      this.#about = { ...about, found };
      this.#explain();
    } catch (error) {
      setText(byId("order-error"), `The messages can't be counted: ${error.message}.`);
    }
  }

  async #give() {
    const action = this.#action;
    const { title, body, told, stays, patience } = ACTIONS[action];
    const fields = this.#fields();
    byId("confirm").disabled = true;
    setText(byId("order-error"), "");
    if (patience) setContent(byId("order-result"), "In progress…");
    try {
      const value = body ? body(fields, this.#about) : this.#order(fields);
      const answer = await this.#gateway.post(`/v1/${action}`, value, patience);
      const words = told ? told(answer) : ordered(fields, answer);
      if (stays) this.#show(words);
      else byId("order").close();
      this.#done(stays ? "" : `${title}: ${words}`, action);
    } catch (error) {
      this.#fail(error, action);
    } finally {
      if (!stays) this.#explain();
      else byId("confirm").disabled = false;
    }
  }

  #show(words) {
    setContent(byId("order-result"), words);
    byId("confirm").hidden = true;
    setText(byId("cancel"), "Close");
    byId("cancel").focus();
  }

  #fail(error, action) {
    setContent(byId("order-result"));
    if (action === "drain" && error instanceof Lost) {
      this.#show("The process has gone before its report came.");
      return;
    }
    if (error instanceof Refused && error.message.includes("--force")) byId("force-field").hidden = false;
    const rights = error instanceof Refused && error.status === 401 ? " Steering needs the right Manage on everything." : "";
    setText(byId("order-error"), `The order had no effect that is known: ${error.message}.${rights}`);
  }

  #order({ targets, reason }) {
    const until = this.#until();
    return { targets, reason, ...(until ? { until } : {}), ...(byId("force").checked ? { force: true } : {}) };
  }

  #until() {
    const choice = ACTIONS[this.#action].fields.includes("end") ? byId("end").value : "";
    if (choice === "") return null;
    if (choice === "at") return new Date(byId("date").value).toISOString();
    return new Date(Date.now() + Number(choice) * 1000).toISOString();
  }
}
