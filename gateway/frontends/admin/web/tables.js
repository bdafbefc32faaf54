// The sections with tables and figures of the status.

import { Rows, buttonOf, byId, element, setContent, setTerms, setText, state } from "./dom.js";
import { TONES, UNKNOWN, between, bytes, count, dateOf, messages, rate, span, timeOf, wordsOf } from "./words.js";

const ABILITIES = ["send", "receive", "manage", "reach"];
const MOST_ENTITIES = 100; // the status has no more; a row for each
const cells = (number, ...kinds) => Array.from({ length: number }, (_, index) =>
  element(index === 0 ? "th" : "td", { ...(index === 0 && { scope: "row" }), ...(kinds[index] && { class: kinds[index] }) }));

const namespaceRows = new Rows(byId("namespace-rows"), () => cells(6));

export function showNamespaces(status) {
  const told = status.problems.join("\n");
  byId("namespaces").hidden = status.namespaces.length === 0;
  namespaceRows.show(status.namespaces.map((each) => [each.name, each]), ([name, role, ...rest], each) => {
    setText(name, each.name);
    setText(role, `${each.role}, ${each.kind}`);
    ABILITIES.forEach((ability, index) => setContent(rest[index], ...abilityOf(each.abilities[ability], status.at, told)));
  });
}

// `told` has the texts of problems, which aren't repeated.
function abilityOf(ability, at, told) {
  if (ability === undefined) return [UNKNOWN];
  const since = ability.since ? ` for ${span(between(ability.since, at))}` : "";
  const isTold = ability.state !== "no" || told.includes(ability.error);
  const why = ability.error && !isTold ? `${ability.error}; ${ability.remedy}` : "";
  return [state(ability.state, TONES[ability.state]), since, ...(why ? [element("span", { class: "why" }, why)] : [])];
}

export function showProblems(status) {
  byId("problems").hidden = status.problems.length === 0;
  setContent(byId("problem-list"), ...Object.entries(byRemedy(status.problem_details)).map(([remedy, problems]) => element(
    "li", {}, ...problems.flatMap((text, index) => [...(index ? [element("br")] : []), ...withCode(text)]),
    ...(remedy ? [element("span", { class: "remedy" }, "→ ", ...withCode(remedy))] : []))));
}

// The problems that have the same remedy are told together.
function byRemedy(problems) {
  const found = {};
  for (const { text, remedy } of problems) (found[remedy] ??= []).push(text);
  return found;
}

// Commands and names stand between backticks.
const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));

let entityRows;

export const entityFilter = () => byId("entity-filter").value.trim().toLowerCase();

const totalOf = (status) => Object.values(status.pair.states).reduce((sum, number) => sum + number, 0);

// True if the status doesn't list all troubled entities, so that a filter must ask the gateway.
export const isCut = (status) => totalOf(status) > status.pair.entities.length;

const PROBED = new Set(["suspect", "secondary", "half-open"]);
const MOST_ALIKE = 5; // entities with one state and reason: more of them are one row
const MOST_NAMED = 3;

const unfolded = new Set(); // the keys of groups whose entities are shown

function first(names, most) {
  const more = names.length - most;
  return `${names.slice(0, most).join(", ")}${more > 0 ? ` and ${count(more)} more` : ""}`;
}

const sum = (numbers) => (numbers.includes(null) ? null : numbers.reduce((total, number) => total + number, 0));

// One row for the entities with the same state and reason, if they are many.
function folded(entities) {
  const groups = new Map();
  for (const each of entities) {
    const key = JSON.stringify([each.state, each.reason.replaceAll(each.entity, "")]);
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups].flatMap(([key, found]) => (found.length <= MOST_ALIKE || unfolded.has(key) ? found : [{
    ...found[0],
    entity: `${count(found.length)} entities`,
    names: first(found.map((each) => each.entity), MOST_NAMED),
    since: found.map((each) => each.since).sort()[0],
    diverted: sum(found.map((each) => each.diverted)),
    waiting: sum(found.map((each) => each.waiting)),
    next_probe: Math.min(...found.map((each) => each.next_probe ?? Infinity)),
    key,
  }]));
}

export function foldEntities() {
  unfolded.clear();
}


function toolsOf(entity, steer, probe) {
  const made = [["Probe now", `Probe now: ${entity}`, () => probe(entity)], ["Fail back…", `Fail back ${entity}…`, () => steer("failback", entity)]];
  return element("div", { class: "tools" }, ...made.map((each) => buttonOf(...each)));
}

// `steer(action, target)` opens the dialog, `probe(target)` probes at once; each needs its action among the `actions`.
// `again` shows all of it again. `others` are the states of entities that match the filter, by name: those that aren't in the status are shown with
// their state alone.
export function showEntities(status, { steer, probe, actions, again }, others) {
  const { entities, states } = status.pair;
  const total = totalOf(status);
  entityRows ??= new Rows(byId("entity-rows"), (entity) => {
    const row = cells(8, "", "short", "short", "short", "short", "short", "", entity.key ? "short acts" : "short acts steers");
    row[7].append(entity.key
      ? buttonOf("Show each", `Show each of ${entity.entity} that are ${entity.state}`, () => {
        unfolded.add(entity.key);
        again();
      })
      : toolsOf(entity.entity, steer, probe));
    return row;
  });
  const filter = entityFilter();
  const listed = new Set(entities.map((each) => each.entity));
  const unlisted = Object.entries(others).filter(([entity]) => !listed.has(entity)).map(([entity, name]) => (
    { entity, state: name, since: null, reason: "", diverted: null, waiting: null, next_probe: null }));
  const found = [...entities, ...unlisted].filter((each) => each.entity.toLowerCase().includes(filter)).slice(0, MOST_ENTITIES);
  const rows = filter ? found : folded(found);
  entityRows.show(rows.map((each) => [each.key ?? each.entity, each]), ([name, kind, age, diverted, waiting, probe, reason, tools], each) => {
    setContent(name, each.entity, ...(each.names ? [element("span", { class: "why" }, each.names)] : []));
    setContent(kind, state(each.state, TONES[each.state]));
    setText(age, span(between(each.since, status.at)));
    setText(diverted, count(each.diverted));
    setText(waiting, count(each.waiting));
    setText(probe, Number.isFinite(each.next_probe) ? `in ${span(each.next_probe)}` : UNKNOWN);
    setText(reason, each.reason);
    if (each.key) return;
    const [probes, returns] = tools.firstChild.children;
    probes.hidden = !actions.has("probe") || !PROBED.has(each.state);
    returns.hidden = !actions.has("failback") || each.state === "primary";
  });
  byId("entities").hidden = total === 0;
  byId("entity-table").toggleAttribute("data-plain", !actions.has("probe") && !actions.has("failback"));
  byId("fold").hidden = unfolded.size === 0 || Boolean(filter);
  setText(byId("entity-count"), countOf(total, entities.length, found.length, filter, states));
}

function countOf(total, told, shown, filter, states) {
  const kinds = Object.entries(states).filter(([, number]) => number).map(([name, number]) => `${count(number)} ${name}`);
  const more = told < total ? ` The ${told} that have been in trouble for the longest time are listed.` : "";
  const filtered = filter ? ` The filter shows ${shown}${shown === MOST_ENTITIES ? ", perhaps of more" : ""}.` : "";
  return `${kinds.join(", ")}.${more}${filtered}`;
}

const deadLetters = (dead) => {
  if (dead.messages === null) return UNKNOWN;
  if (dead.messages === 0) return "none";
  const reasons = Object.entries(dead.reasons).sort((one, other) => other[1] - one[1]);
  const age = dead.oldest_age === null ? "" : `; the oldest is ${span(dead.oldest_age)} old`;
  return `${count(dead.messages)}: ${reasons.map(([reason, number]) => `${count(number)} ${reason}`).join(", ")}${age}`;
};

const syphonsText = ({ unknown, alive, consumers, last }, isHere, at) => {
  if (isHere && !alive.length && !consumers) return "that of this process; others aren't known";
  if (unknown) return `${UNKNOWN} (${unknown})`;
  if (alive.length) {
    return alive.map((each) => `${each.process} on ${each.host}, seen ${span(between(each.at, at))} ago${each.paused ? ", paused" : ""}`).join("; ");
  }
  if (consumers) return "another process receives from the backlog";
  return last ? `none has been seen for ${span(between(last, at))}` : "none has been seen";
};

// How much waits, and its way home.
export function showSummary(status, sends) {
  const { pair: { backlog }, progress, at } = status;
  const oldest = backlog.oldest_age === null ? "" : `the oldest for ${span(backlog.oldest_age)}, `;
  const asOf = backlog.as_of ? `${oldest}as of ${span(between(backlog.as_of, at))} ago` : oldest;
  const left = progress.seconds_left === null ? "" : `; empty in about ${span(progress.seconds_left)}`;
  const moves = progress.rate === null ? left : ` ${rate(progress.rate)}${left}`;
  const depth = backlog.pending === null ? `${UNKNOWN} (unknown: ${backlog.unknown})` : `${backlog.counted ? "about " : ""}${messages(backlog.pending)}`;
  const why = (text) => (text ? [element("span", { class: "why" }, text)] : []);
  const tiles = [
    ["sends", sends],
    ["waiting", [depth, ...why(asOf)]],
    ["way home", [state(wordsOf(progress.state), TONES[progress.state]), moves, ...why(progress.why)]],
  ];
  setContent(byId("summary-figures"), ...tiles.filter(([, value]) => value !== null).map(
    ([term, value]) => element("div", {}, element("dt", {}, term), element("dd", {}, ...[value].flat()))));
}

export function showBacklog(status) {
  const { pair, at } = status;
  const { backlog, syphon } = pair;
  const last = syphon.last_moved ? `, the last ${span(between(syphon.last_moved, at))} ago` : "";
  setTerms(byId("backlog-figures"), [
    ["syphons", syphonsText(backlog.syphons, syphon.running, at)],
    ["moved since the start", `${messages(syphon.moved)}${last}`],
    ["backed off", `${count(syphon.backing_off)} entities`],
    ["backlog queues", `${count(backlog.usable)} of ${count(backlog.wanted)} are usable`],
    ["dead letters", deadLetters(backlog.dead_letters)],
  ]);
}

const waitingRows = new Rows(byId("waiting-rows"), () => cells(2, "", "short"));

// Unknown where other processes divert or move messages, too, or some are from before the start.
export function showWaiting({ pair: { backlog } }) {
  const { by_entity: found, pending } = backlog;
  byId("waiting").hidden = pending === 0;
  const entities = Object.entries(found ?? {});
  const listed = entities.reduce((sum, [, number]) => sum + number, 0);
  setText(byId("waiting-note"), found === null
    ? `${UNKNOWN} (unknown): others divert or move messages of this backlog, too, or some are from before this process started.`
    : `${messages(listed)} for ${count(entities.length)} entities, as this process counts them.`);
  waitingRows.show(entities.map((each) => [each[0], each]), ([name, waiting], [entity, number]) => {
    setText(name, entity);
    setText(waiting, count(number));
  });
}

export function showSpool(status) {
  const { spool } = status.pair;
  byId("spool").hidden = spool === null;
  if (spool === null) return;
  setTerms(byId("spool-figures"), [
    ["waiting", spool.pending === null ? `${UNKNOWN} (unknown)` : messages(spool.pending)],
    ["the oldest waits for", spool.oldest_age === null ? null : span(spool.oldest_age)],
    ["rates", `${rate(spool.rate_in)} in, ${rate(spool.rate_out)} out`],
    ["room left", bytes(spool.free_bytes)],
    ["dead letters", deadLetters(spool.dead_letters)],
  ]);
}

const OUTCOMES = { primary: "accepted by the primary", backlog: "accepted by the backlog", spool: "accepted by the spool" };

export function showSends(status) {
  const { pair } = status;
  const busy = pair.paused
    ? [state("busy", "warn"), ` the primary asked for a pause: sends to ${count(pair.paused)} entities wait`]
    : `none now; ${count(pair.pauses)} since the start`;
  setTerms(byId("sends"), [
    ...pair.sends.map((each) => [OUTCOMES[each.accepted_by] ?? `failed: ${each.outcome}`, messages(each.messages)]),
    ["busy pauses", busy],
    ["connections", status.connections.length ? status.connections.map((each) => `${each.protocol} ${count(each.open)}`).join(", ") : null],
    ["in flight", `${bytes(pair.inflight)} of ${bytes(pair.max_inflight)}`],
  ]);
}

const listenerRows = new Rows(byId("listener-rows"), () => cells(9));
const poolRows = new Rows(byId("pool-rows"), () => cells(7));

export function showListeners(status, rates) {
  byId("listeners").hidden = status.queues.length === 0;
  setText(byId("wake"), status.queues.length && status.wake ? wakeOf(status.wake) : "");
  listenerRows.show(status.queues.map((each) => [each.queue, each]), (row, each) => {
    const values = [each.queue, count(each.depth), `${count(each.active_tasks)} of ${count(each.total_tasks)}`, count(each.locked),
      rate(rates.of(`completed ${each.queue}`)), count(each.completed), count(each.failed), count(each.poisoned), count(each.too_late)];
    values.forEach((value, index) => setText(row[index], value));
  });
}

export function showPools(status, rates) {
  byId("pools").hidden = status.pools.length === 0;
  poolRows.show(status.pools.map((each) => [each.listener, each]), (row, each) => {
    const values = [each.listener, count(each.depth), span(each.oldest_age), `${count(each.processes)} of ${count(each.wanted)}`,
      count(each.handling), rate(rates.of(`handled ${each.listener}`)), count(each.handled)];
    values.forEach((value, index) => setText(row[index], value));
  });
}

function wakeOf(wake) {
  if (wake.announced) return "Every message has a trigger: an idle listener doesn't poll.";
  if (wake.poll_every === null) return "An idle listener misses messages without a trigger: sweep is off.";
  return `Not every sender is known to send triggers: an idle listener polls every ${wake.poll_every} s.`;
}

// The processes of the pair that orders don't reach, as a sentence; empty: they reach all.
export function reachOf({ not_reached: left, reach_unknown: unknown }) {
  if (left.length) return `Not reached, so order them, too: ${left.join("; ")}.`;
  return unknown ? `It isn't known which other processes follow: ${unknown}.` : "";
}

let orderRows;

export function showOrders(control, steer) {
  const orders = [
    ...control.pins.map((each) => ["pinned to the backlog", "failback", each]),
    ...control.pauses.map((each) => ["syphon paused", "resume", each]),
  ];
  orderRows ??= new Rows(byId("order-rows"), ([, action, each]) => {
    const row = cells(7, "", "", "", "", "", "", "acts steers");
    const text = action === "failback" ? "Fail back…" : "Resume…";
    row[6].append(buttonOf(text, `${text.slice(0, -1)} ${each.target}…`, () => steer(action, each.target)));
    return row;
  });
  byId("orders").hidden = orders.length === 0;
  setText(byId("order-reach"), reachOf(control));
  byId("order-reach").hidden = reachOf(control) === "";
  orderRows.show(orders.map((each) => [`${each[1]} ${each[2].target}`, each]), (row, [kind, , each]) => {
    const excepted = each.excepted.length ? `, except ${each.excepted.join(", ")}` : "";
    const values = [kind, `${each.target}${excepted}`, each.reason, each.operator, dateOf(each.since), each.until ? dateOf(each.until) : "an operator undoes it"];
    values.forEach((value, index) => setText(row[index], value));
  });
}

const processRows = new Rows(byId("pair-process-rows"), () => cells(6, "", "short", "short", "short", "short"));
const REACH = new Map([[true, "reach it"], [false, "don't reach it: it may not read on the secondary"], [null, UNKNOWN]]);

// The processes that leave records on the secondary.
export function showProcesses({ pair: { processes, reach_unknown: unknown }, at }) {
  byId("processes").hidden = processes.length === 0 && !unknown;
  setText(byId("processes-note"), unknown ? `Others aren't known now: ${unknown}.` : "");
  processRows.show(processes.map((each) => [`${each.name} ${each.started}`, each]), ([name, kind, version, up, seen, orders], each) => {
    setText(name, `${each.name}${each.here ? ", this one" : ""}`);
    setContent(kind, state(each.state, TONES[each.state]));
    setText(version, each.version || UNKNOWN);
    setText(up, each.state === "alive" ? span(between(each.started, at)) : UNKNOWN);
    setText(seen, `${span(between(each.seen, at))} ago`);
    setText(orders, each.state === "alive" ? REACH.get(each.reads) : UNKNOWN);
  });
}

const MOST_EVENTS = 100;
const HIDDEN = new Set(["timestamp", "level", "event"]);

// The last events, the newest first. Many at once are shown together.
export class Events {
  #last = [];
  #number = 0;
  #due = false;
  #rows = new Rows(byId("event-rows"), () => cells(4, "short", "short", "short"));

  note(name, fields) {
    this.#last.unshift([++this.#number, name, fields]);
    this.#last.length = Math.min(this.#last.length, MOST_EVENTS);
    if (this.#due) return;
    this.#due = true;
    setTimeout(() => this.#show(), 100);
  }

  #show() {
    this.#due = false;
    byId("no-events").hidden = true;
    byId("event-table").hidden = false;
    this.#rows.show(this.#last.map((each) => [each[0], each]), (row, [, name, fields]) => {
      if (row[0].textContent) return; // an event doesn't change
      const level = fields.level ?? "warning";
      setText(row[0], fields.timestamp ? timeOf(fields.timestamp) : UNKNOWN);
      setContent(row[1], state(level, TONES[level]));
      setText(row[2], name === "gap" ? "events are missing" : name);
      setText(row[3], fieldsOf(fields));
    });
  }
}

const fieldsOf = (fields) => Object.entries(fields).filter(([name, value]) => !HIDDEN.has(name) && value !== "" && value !== null)
  .map(([name, value]) => `${name} ${value}`).join(", ");
