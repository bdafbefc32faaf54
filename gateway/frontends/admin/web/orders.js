// Steering: each button opens a dialog that names the consequence, and asks for a reason and an end.

import { byId, setText } from "./dom.js";
import { Refused } from "./gateway.js";

const all = (targets) => targets.includes("*");
const named = (targets) => (all(targets) ? "all entities" : targets.join(", ") || "no entity");

// Per action: its name on buttons, whether it has an end, and its consequence.
const ACTIONS = {
  failover: {
    title: "Fail over",
    ends: true,
    consequence: (targets, { primary, secondary }) => `New sends to ${named(targets)} go to the backlog on ${secondary}, even while ${primary} works. `
      + `Receivers on ${primary} get these messages only after you have failed back and the syphon has moved them.`,
  },
  failback: {
    title: "Fail back",
    ends: false,
    consequence: (targets, { primary }) => `New sends to ${named(targets)} go to ${primary} at once, and their failures are counted from zero. `
      + `If ${primary} still fails, sends wait or fail until the entities fail over again.`,
  },
  pause: {
    title: "Pause the syphon",
    ends: true,
    consequence: (targets, { primary, secondary }) => `The syphon of this process moves nothing to ${primary} for ${named(targets)}: `
      + `their backlog stays on ${secondary}, and its messages age. Live traffic goes on.`,
  },
  resume: {
    title: "Resume the syphon",
    ends: false,
    consequence: (targets, { primary }) => `The syphon moves the backlog of ${named(targets)} to ${primary} again: ${primary} gets that load in addition to live traffic.`,
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
    const { title, ends } = ACTIONS[action];
    byId("order-form").reset();
    setText(byId("order-title"), title);
    setText(byId("confirm"), title);
    setText(byId("order-error"), "");
    byId("targets").value = target;
    byId("end-field").hidden = !ends;
    byId("date-field").hidden = true;
    byId("date").required = false;
    byId("confirm").disabled = false;
    this.#explain();
    byId("order").showModal();
    byId("reason").focus();
  }

  #targets() {
    return byId("targets").value.split(/\s+/).filter(Boolean);
  }

  #explain() {
    setText(byId("consequence"), ACTIONS[this.#action].consequence(this.#targets(), this.#names));
  }

  async #give() {
    const order = { targets: this.#targets(), reason: byId("reason").value };
    const until = this.#until();
    if (until) order.until = until;
    byId("confirm").disabled = true;
    setText(byId("order-error"), "");
    try {
      const answer = await this.#gateway.post(`/v1/${this.#action}`, order);
      byId("order").close();
      const effect = answer.changed ? "is in effect" : "was in effect already";
      this.#done(`${ACTIONS[this.#action].title}: the order for ${named(order.targets)} ${effect}.`);
    } catch (error) {
      const rights = error instanceof Refused && error.status === 401 ? " Steering needs the right Manage on everything." : "";
      setText(byId("order-error"), `The order had no effect that is known: ${error.message}.${rights}`);
    } finally {
      byId("confirm").disabled = false;
    }
  }

  #until() {
    const choice = ACTIONS[this.#action].ends ? byId("end").value : "";
    if (choice === "") return null;
    if (choice === "at") return new Date(byId("date").value).toISOString();
    return new Date(Date.now() + Number(choice) * 1000).toISOString();
  }
}
