// A drill that is under way, and its verdict: from the figures of the gateway's own load.

import { byId, setContent, setTerms, state } from "./dom.js";
import { UNKNOWN, between, count, messages, span } from "./words.js";

const AWAY = ["suspect", "secondary", "half-open"];
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const awayOf = (pair) => sum(AWAY.map((name) => pair.states[name] ?? 0));

function sendsOf(pair) {
  const found = { primary: 0, backlog: 0, spool: 0, failed: 0 };
  for (const each of pair.sends) found[each.accepted_by || "failed"] += each.messages;
  return { ...found, moved: pair.syphon.moved };
}

export class DrillWatch {
  #drill = null; // the last one that the page has seen
  #base = null; // counters when the page first saw it
  #now = null;
  #most = 0; // entities that were away from the primary at once
  #endedAt = null; // dates of the gateway; null: not yet
  #backAt = null;
  #emptyAt = null;

  note(status) {
    const { pair, at } = status;
    const { drill } = pair;
    if (drill !== null && drill.since !== this.#drill?.since) this.#begin(drill, sendsOf(pair));
    byId("drill").hidden = this.#drill === null;
    if (this.#drill === null) return;
    this.#follow(pair, at, drill !== null);
    this.#show(at);
  }

  #begin(drill, base) {
    this.#drill = drill;
    this.#base = base;
    this.#most = 0;
    this.#endedAt = this.#backAt = this.#emptyAt = null;
  }

  #follow(pair, at, lasts) {
    if (this.#emptyAt !== null) return; // the verdict stays as it is
    this.#now = sendsOf(pair);
    this.#most = Math.max(this.#most, awayOf(pair));
    if (lasts) return;
    this.#endedAt ??= at;
    if (awayOf(pair) === 0) this.#backAt ??= at;
    const { pending, as_of: asOf } = pair.backlog;
    if (this.#backAt !== null && pending === 0 && asOf >= this.#endedAt) this.#emptyAt = at;
  }

  #show(at) {
    const drill = this.#drill;
    const whole = drill.targets.includes("*") ? drill.namespace : `${drill.targets.join(", ")} of ${drill.namespace}`;
    const by = ` by ${drill.operator}${drill.reason ? `: ${drill.reason}` : ""}`;
    const lasts = this.#endedAt === null;
    setContent(byId("drill-state"), state(lasts ? "under way" : this.#emptyAt === null ? "coming home" : "over", lasts ? "warn" : "good"),
      ` ${whole}, ${drill.fault},${by}. ${lasts ? `It ends in ${span(between(at, drill.until))}.` : this.#verdict()}`);
    byId("drill-ending").hidden = !lasts;
    const grown = (name) => Math.max(0, this.#now[name] - this.#base[name]);
    const after = (date) => (date === null ? UNKNOWN : `${span(between(this.#endedAt, date))} after its end`);
    setTerms(byId("drill-figures"), [
      ["entities away from the primary", `${count(this.#most)} at most`],
      ["accepted meanwhile", `${messages(grown("primary"))} by the primary, ${count(grown("backlog"))} by the backlog, ${count(grown("spool"))} by the spool`],
      ["failed sends", count(grown("failed"))],
      ["moved home", count(grown("moved"))],
      ["entities returned", lasts ? UNKNOWN : after(this.#backAt)],
      ["backlog empty", lasts ? UNKNOWN : after(this.#emptyAt)],
    ]);
  }

  #verdict() {
    if (this.#emptyAt === null) return this.#backAt === null ? "Entities return to the primary." : "The backlog comes home.";
    const failed = this.#now.failed - this.#base.failed;
    const counted = failed > 0 ? `Verdict: ${count(failed)} sends failed.` : "Verdict: no send failed, all entities are back, and the backlog is empty.";
    return `${counted} Whether a message was lost or arrived twice is checked by pairgate drill, which sends messages of its own.`;
  }
}
