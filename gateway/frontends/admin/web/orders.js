// Steering: each button opens a dialog that names the consequence, and asks for a reason and an end.

import { byId, setText } from "./dom.js";
import { Refused } from "./gateway.js";

const all = (targets) => targets.includes("*");
const named = (targets) => (all(targets) ? "all entities" : targets.join(", ") || "no entity");

const MOST_REDRIVEN = 1000; // messages of one call

function redriven({ moved, left, problems }) {
  const kept = left ? `, ${left} couldn't be moved: ${problems.join("; ")}` : "";
  return `${moved} moved${kept}.${moved + left >= MOST_REDRIVEN ? " There may be more." : ""}`;
}

// Per action: its name on buttons, whether it has a reason and an end, and its consequence. An action that isn't an
// order of control has a path, a body, and words for the answer of its own.
const ACTIONS = {
  failover: {
    title: "Fail over",
    reasoned: true,
    ends: true,
    consequence: (targets, { primary, secondary }) => `New sends to ${named(targets)} go to the backlog on ${secondary}, even while ${primary} works. `
      + `Receivers on ${primary} get these messages only after you have failed back and the syphon has moved them.`,
  },
  failback: {
    title: "Fail back",
    reasoned: true,
    ends: false,
    consequence: (targets, { primary }) => `New sends to ${named(targets)} go to ${primary} at once, and their failures are counted from zero. `
      + `If ${primary} still fails, sends wait or fail until the entities fail over again.`,
  },
  pause: {
    title: "Pause the syphon",
    reasoned: true,
    ends: true,
    consequence: (targets, { primary, secondary }) => `The syphon of this process moves nothing to ${primary} for ${named(targets)}: `
      + `their backlog stays on ${secondary}, and its messages age. Live traffic goes on.`,
  },
  resume: {
    title: "Resume the syphon",
    reasoned: true,
    ends: false,
    consequence: (targets, { primary }) => `The syphon moves the backlog of ${named(targets)} to ${primary} again: ${primary} gets that load in addition to live traffic.`,
  },
  redrive: {
    title: "Redrive dead letters",
    reasoned: false,
    ends: false,
    consequence: (targets, { primary }) => `Up to ${MOST_REDRIVEN} dead letters of ${named(targets)} go back to the backlog, and the syphon sends them to ${primary}. `
      + "Fix the cause first, or they become dead letters again. Expired messages stay where they are.",
    path: "/redrive",
    body: (targets) => ({ selection: { entities: all(targets) ? [] : targets }, executes: true, most: MOST_REDRIVEN }),
    told: redriven,
  },
};

export class Orders {
  #gateway;
  #names; // of the namespaces, when the dialog opens
  #action = "";
  #done; // called after an order with its answer in words

  constructor(gateway, done) {
    this.#gateway = gateway;
    this.#done = done;
    byId("order-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#give();
    });
    byId("cancel").addEventListener("click", () => byId("order").close());
    byId("targets").addEventListener("input", () => this.#explain());
    byId("end").addEventListener("change", () => {
      byId("date-field").hidden = byId("end").value !== "at";
      byId("date").required = byId("end").value === "at";
    });
  }

  open(action, target, names) {
    this.#action = action;
    this.#names = names;
    const { title, ends, reasoned } = ACTIONS[action];
    byId("order-form").reset();
    setText(byId("order-title"), title);
    setText(byId("confirm"), title);
    setText(byId("order-error"), "");
    byId("targets").value = target;
    byId("end-field").hidden = !ends;
    byId("reason-field").hidden = !reasoned;
    byId("date-field").hidden = true;
    byId("date").required = false;
    byId("confirm").disabled = false;
    this.#explain();
    byId("order").showModal();
    byId(reasoned ? "reason" : "targets").focus();
  }

  #targets() {
    return byId("targets").value.split(/\s+/).filter(Boolean);
  }

  #explain() {
    setText(byId("consequence"), ACTIONS[this.#action].consequence(this.#targets(), this.#names));
  }

  async #give() {
    const { title, path, body, told } = ACTIONS[this.#action];
    const targets = this.#targets();
    byId("confirm").disabled = true;
    setText(byId("order-error"), "");
    try {
      const answer = await this.#gateway.post(path ?? `/v1/${this.#action}`, body ? body(targets) : this.#order(targets));
      byId("order").close();
      const effect = answer.changed ? "is in effect" : "was in effect already";
      this.#done(`${title}: ${told ? told(answer) : `the order for ${named(targets)} ${effect}.`}`);
    } catch (error) {
      const rights = error instanceof Refused && error.status === 401 ? " Steering needs the right Manage on everything." : "";
      setText(byId("order-error"), `The order had no effect that is known: ${error.message}.${rights}`);
    } finally {
      byId("confirm").disabled = false;
    }
  }

  #order(targets) {
    const until = this.#until();
    return { targets, reason: byId("reason").value, ...(until ? { until } : {}) };
  }

  #until() {
    const choice = ACTIONS[this.#action].ends ? byId("end").value : "";
    if (choice === "") return null;
    if (choice === "at") return new Date(byId("date").value).toISOString();
    return new Date(Date.now() + Number(choice) * 1000).toISOString();
  }
}
