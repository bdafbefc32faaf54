// The operators' page: reads the status, follows the events, and shows both.

import { byId, nameRoles, setAttribute, setText } from "./dom.js";
import { DrillWatch } from "./drill.js";
import { Gateway, Lost, Refused } from "./gateway.js";
import { showHistory } from "./history.js";
import { Letters } from "./letters.js";
import { Orders } from "./orders.js";
import { show as showPicture } from "./picture.js";
import { Rates } from "./rates.js";
import * as tables from "./tables.js";
import { span } from "./words.js";

const EVERY = 1000; // milliseconds between two readings of the status
const SOON = 200; // after an event
const HISTORY_EVERY = 10; // seconds: the depth isn't asked more often
const LATE = 4000; // without an answer: the gateway may be lost
const RECENT = 100; // events from before the page was opened
const PROBE_PATIENCE = 60000; // milliseconds

const STEERING = ["failover", "pause", "drill"]; // one of these is there where a pair or a syphon is

const gateway = new Gateway();
const rates = new Rates();
const events = new tables.Events();
const drills = new DrillWatch();
const orders = new Orders(gateway, (text, action) => {
  setText(byId("notice"), text);
  if (action === "redrive" && byId("letters").open) letters.read();
  historyOf = 0;
  wake();
});
const letters = new Letters(gateway, (reason, entity) => steer("redrive", "*", { reason, entity }));

let shown = null; // the last status
let control = null; // the orders in effect; null: this process can't be steered
let actions = new Set(); // that work for this user here; a reader has none
let permittedBy = ""; // the start of the process that has told them
let found = {}; // the states of entities that match the filter, by name
let overrides = ""; // the status's words for them, to see when they change
let historyOf = 0; // the date of the history that is shown, in seconds
let heard = null; // the moment of the last answer
let asked = false; // whether credentials are needed
let additions = []; // what the modules of extensions show
let wake = () => {};
let signedIn = () => {};

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const rested = (milliseconds) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  wake = () => {
    clearTimeout(timer);
    resolve();
  };
});

function tellLost(why) {
  const since = heard === null ? "" : ` All values below are those of ${new Date(heard).toLocaleTimeString("en-GB")}.`;
  setText(byId("lost"), `The page has lost its gateway, because ${why}.${since}`);
  setText(byId("verdict"), "unknown");
  setAttribute(byId("verdict"), "data-good", "false");
  setAttribute(document.body, "data-stale", "");
  document.title = "lost – Pairgate";
}

function tellHeard() {
  heard = Date.now();
  setText(byId("lost"), "");
  document.body.removeAttribute("data-stale");
}

function countersOf(status) {
  const counters = { primary: 0, backlog: 0, spool: 0, failed: 0 };
  for (const each of status.pair?.sends ?? []) counters[each.accepted_by || "failed"] += each.messages;
  for (const each of status.queues) counters[`completed ${each.queue}`] = each.completed;
  for (const each of status.pools) counters[`handled ${each.listener}`] = each.handled;
  return counters;
}

function steer(action, target, about) {
  const of = (role) => shown.namespaces.find((each) => each.role === role)?.name ?? `the ${role}`;
  orders.open(action, target, { primary: of("primary"), secondary: of("secondary") }, about);
}

async function steerDrill() {
  try {
    steer("drill", "*", { longest: (await gateway.get("/v1/drill")).longest });
  } catch (error) {
    setText(byId("notice"), `Rehearse an outage: ${error.message}.`);
  }
}

async function endDrill() {
  try {
    await gateway.post("/v1/end-drill", {});
    wake();
  } catch (error) {
    setText(byId("notice"), `End the drill: ${error.message}.`);
  }
}

// A probe harms nothing, so that no dialog asks.
async function probe(entity) {
  const notice = byId("entity-notice");
  setText(notice, `${entity} is being probed.`);
  try {
    const { before, after, probes } = await gateway.post("/v1/probe", { targets: [entity] }, PROBE_PATIENCE);
    for (const [name, { answered, seconds, text }] of Object.entries(probes)) {
      const change = before[name] === after[name] ? `it stays ${after[name]}` : `${before[name]} → ${after[name]}`;
      setText(notice, `${name} ${answered ? `answered in ${seconds} s` : `doesn't answer: ${text}`}; ${change}.`);
    }
  } catch (error) {
    setText(notice, `${entity} wasn't probed: ${error.message}.`);
  }
  wake();
}

function show(status) {
  shown = status;
  rates.note(Date.parse(status.at) / 1000, status.started, countersOf(status));
  setText(byId("verdict"), status.good ? "All is well" : `Needs attention: ${status.problems.length}`);
  setAttribute(byId("verdict"), "data-good", status.good);
  setText(byId("updated"), `as of ${new Date(status.at).toLocaleTimeString("en-GB")}, up for ${span((Date.parse(status.at) - Date.parse(status.started)) / 1000)}`);
  document.title = `${status.good ? "well" : "needs attention"} – Pairgate`;
  tables.showProblems(status);
  tables.showNamespaces(status);
  tables.showListeners(status, rates);
  tables.showPools(status, rates);
  for (const id of ["summary", "pair", "backlog"]) byId(id).hidden = status.pair === null;
  if (status.pair === null) for (const id of ["entities", "spool", "drill", "processes"]) byId(id).hidden = true;
  else {
    const acceptsSends = control === null || control.has_pair;
    const sends = showPicture(status, rates, acceptsSends, byId("picture"), byId("ways"));
    tables.showSummary(status, sends);
    byId("sends").hidden = !acceptsSends;
    tables.showSends(status);
    showEntities();
    tables.showBacklog(status);
    tables.showWaiting(status);
    tables.showProcesses(status);
    tables.showSpool(status);
    drills.note(status);
    letters.note(status);
    byId("redriving").hidden = !actions.has("redrive") || !status.pair.backlog.dead_letters.messages;
  }
  for (const each of additions) each.note(status, actions);
  byId("figures").hidden = false;
}

async function startModules() {
  const { modules } = await gateway.get("/page/modules");
  const found = await Promise.all(modules.map((name) => import(`/page/${name}`)));
  additions = found.map(({ start }) => start({ gateway, place: byId("additions") }));
}

async function readPermissions(status) {
  if (status.started === permittedBy) return;
  const told = await gateway.get("/v1/permissions");
  actions = new Set(told.actions);
  permittedBy = status.started;
  document.body.toggleAttribute("data-reads", told.role === "reader");
  for (const button of document.querySelectorAll("button[data-action]")) button.hidden = !actions.has(button.dataset.action);
  byId("steering").hidden = !STEERING.some((action) => actions.has(action));
  byId("process").hidden = !actions.has("drain");
}

async function readControl(status) {
  const told = JSON.stringify([status.pair?.pins, status.pair?.syphon.pauses, status.pair?.not_reached, status.pair?.reach_unknown]);
  if (told === overrides) return;
  try {
    control = await gateway.get("/v1/control");
    tables.showOrders(control, steer);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    control = null; // a listener has no control
  }
  overrides = told;
}

function showEntities() {
  if (shown?.pair) tables.showEntities(shown, { steer, probe, actions, again: showEntities }, found);
}

async function search(status) {
  const text = tables.entityFilter();
  if (!text || !control?.has_pair || !tables.isCut(status)) {
    found = {};
    return;
  }
  const target = `*${text.replaceAll(",", "*")}*`;
  found = (await gateway.get(`/v1/control?targets=${encodeURIComponent(target)}`)).entities;
}

async function readHistory(status) {
  const at = Date.parse(status.at) / 1000;
  if (status.pair === null || Math.abs(at - historyOf) < HISTORY_EVERY) return;
  historyOf = at;
  showHistory(await gateway.get("/v1/history"), status.at, actions.has("purge") ? (queue) => steer("purge", "*", { queue, found: null }) : null);
}

async function read() {
  const late = setTimeout(() => tellLost(`it hasn't answered for ${LATE / 1000} s`), LATE);
  try {
    if (!asked) {
      const { credentials } = await gateway.get("/page/access");
      await startModules();
      asked = true;
      if (credentials) {
        clearTimeout(late);
        await signIn("");
        return;
      }
    }
    const status = await gateway.get("/status");
    await readPermissions(status);
    await readControl(status);
    if (status.pair !== null) await search(status);
    tellHeard();
    show(status);
    await readHistory(status);
  } catch (error) {
    if (error instanceof Refused && error.status === 401) await signIn(error.message);
    else if (error instanceof Lost || error instanceof Refused) tellLost(error.message);
    else {
      reportError(error); // a bug of the page: it is in the browser's console, and the next reading may do
      tellLost(`the page itself has an error: ${error.message}`);
    }
  } finally {
    clearTimeout(late);
  }
}

// Returns when the user has typed credentials in. `why` is the gateway's answer to the last ones.
async function signIn(why) {
  byId("figures").hidden = true;
  const first = byId("sign-in").hidden;
  byId("sign-in").hidden = false;
  setText(byId("lost"), "");
  setText(byId("sign-in-error"), first ? "" : why);
  byId("policy").focus();
  await new Promise((resolve) => {
    signedIn = resolve;
  });
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value.trim();
  if (token) gateway.useToken(token);
  else gateway.signIn(byId("policy").value, byId("key").value);
  permittedBy = "";
  for (const id of ["key", "token"]) byId(id).value = "";
  signedIn();
});

async function keepReading() {
  for (;;) {
    await read();
    if (shown !== null && !document.body.hasAttribute("data-stale")) byId("sign-in").hidden = true;
    await rested(EVERY);
  }
}

async function follow() {
  const lastId = { value: "" };
  for (;;) {
    // A request without credentials would be reported as refused.
    while (heard === null || !byId("sign-in").hidden) await pause(SOON);
    try {
      for await (const [name, fields] of gateway.events(RECENT, lastId)) {
        events.note(name, fields);
        wakeSoon();
      }
    } catch (error) {
      if (!(error instanceof Lost || error instanceof Refused)) throw error;
    }
    wake(); // to learn at once whether the gateway is there
    await pause(EVERY);
  }
}

let waking = false;

function wakeSoon() {
  if (waking) return;
  waking = true;
  setTimeout(() => {
    waking = false;
    wake();
  }, SOON);
}

nameRoles();
setText(byId("address"), location.host);
byId("fold").addEventListener("click", () => {
  tables.foldEntities();
  showEntities();
});
for (const button of document.querySelectorAll("button[data-action]")) {
  const { action } = button.dataset;
  button.addEventListener("click", () => (action === "drill" ? steerDrill() : steer(action, "*")));
}
byId("end-drill").addEventListener("click", endDrill);
byId("redrive").addEventListener("click", () => steer("redrive", "*"));
byId("entity-filter").addEventListener("input", () => {
  found = {};
  showEntities();
  wakeSoon(); // to ask for those that the status doesn't list
});
keepReading();
follow();
