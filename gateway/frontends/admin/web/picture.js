// The pair as a picture: where sends go now, at which rate, and how the backlog comes home.

import { drawn, setContent, setText } from "./dom.js";
import { UNKNOWN, bytes, count, rate, wordsOf } from "./words.js";

const HEIGHT = 62;

function box(x, y, width, tone, lines) {
  const rect = drawn("rect", { x, y, width, height: HEIGHT, rx: 6, "data-tone": tone });
  const texts = lines.map(([text, kind], index) => drawn(
    "text", { x: x + width / 2, y: y + 18 + 18 * index, "text-anchor": "middle", class: kind }, text));
  return [rect, ...texts];
}

// An arrow from one point to another, with a text at its middle.
function way(from, to, flows, text, [x, y, anchor]) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const length = Math.hypot(dx, dy);
  const [ux, uy] = [dx / length, dy / length];
  const end = [to[0] - 9 * ux, to[1] - 9 * uy];
  const corners = [to, [end[0] - 5 * uy, end[1] + 5 * ux], [end[0] + 5 * uy, end[1] - 5 * ux]];
  return [
    drawn("line", { class: "way", "data-flows": flows, x1: from[0], y1: from[1], x2: end[0], y2: end[1] }),
    drawn("polygon", { class: "tip", "data-flows": flows, points: corners.map((point) => point.join(",")).join(" ") }),
    drawn("text", { x, y, "text-anchor": anchor }, text),
  ];
}

const WAYS = { primary: "to the primary", backlog: "to the backlog", spool: "to the spool", failed: "fail" };

// A namespace that is named as its role has the word once.
const named = (role, namespace) => (namespace && namespace.name !== role ? `the ${role} ${namespace.name}` : `the ${role}`);

const shortened = (text) => (text.length > 15 ? `${text.slice(0, 14)}…` : text);

function toneOf(namespace) {
  const reach = namespace?.abilities.reach?.state;
  return { yes: "good", no: "bad" }[reach] ?? "warn";
}

const REACHED = { good: "answers", bad: "doesn't answer", warn: "unknown" };

// Draws it; `ways` gets the same in words. A process that is a syphon alone accepts no sends. Returns where sends go, in
// few words; null: it accepts none.
export function show(status, rates, acceptsSends, picture, ways) {
  const { pair, progress } = status;
  const of = (role) => status.namespaces.find((each) => each.role === role);
  const [primary, secondary] = [of("primary"), of("secondary")];
  const rateOf = (name) => (acceptsSends ? rates.of(name) : null);
  const flow = { primary: rateOf("primary"), backlog: rateOf("backlog"), spool: rateOf("spool"), failed: rateOf("failed") };
  const known = Object.values(flow).every((each) => each !== null);
  const total = known ? flow.primary + flow.backlog + flow.spool + flow.failed : null;
  const flows = (number) => number !== null && number > 0;
  const shapes = [
    ...box(2, 99, 84, "", [["clients", "name"], [rate(total), ""], ["send", "small"]]),
    ...box(142, 99, 92, "", [["Pairgate", "name"], [bytes(pair.inflight), "small"], ["in flight", "small"]]),
    ...box(300, 8, 128, toneOf(primary), [[shortened(primary?.name ?? "primary"), "name"], [primary?.name === "primary" ? "" : "primary", ""], [REACHED[toneOf(primary)], "small"]]),
    ...box(300, 190, 128, toneOf(secondary), [[shortened(secondary?.name ?? "secondary"), "name"],
      [`${count(pair.backlog.pending)} wait`, ""], [`secondary ${REACHED[toneOf(secondary)]}`, "small"]]),
    ...way([86, 130], [142, 130], flows(total), "", [114, 120, "middle"]),
    ...way([234, 118], [300, 48], flows(flow.primary), rate(flow.primary), [254, 76, "end"]),
    ...way([234, 142], [300, 212], flows(flow.backlog), rate(flow.backlog), [273, 168, "start"]),
    ...way([364, 190], [364, 70], progress.rate > 0, progress.rate === null ? "" : rate(progress.rate), [374, 128, "start"]),
    drawn("text", { x: 354, y: 128, "text-anchor": "end", class: "small" }, "syphon"),
    drawn("text", { x: 354, y: 143, "text-anchor": "end", class: "small" }, wordsOf(progress.state)),
  ];
  if (pair.spool !== null) {
    shapes.push(
      ...box(142, 190, 92, pair.spool.pending ? "warn" : "", [["spool", "name"], [`${count(pair.spool.pending)} wait`, ""], [rate(flow.spool), "small"]]),
      ...way([170, 161], [170, 190], flows(flow.spool), "", [178, 180, "start"]),
    );
  }
  const words = acceptsSends ? inWords(flow, known, primary, secondary) : "This process is a syphon: it accepts no sends.";
  const title = drawn("title", {}, "The pair");
  setContent(picture, drawn("svg", { viewBox: "0 0 430 260", role: "img", "aria-label": `The pair: ${words}` }, title, ...shapes));
  setText(ways, words);
  return acceptsSends ? inFewWords(flow, known) : null;
}

function inFewWords(flow, known) {
  if (!known) return UNKNOWN;
  const parts = Object.entries(WAYS).filter(([name]) => flow[name] > 0).map(([name, words]) => `${rate(flow[name])} ${words}`);
  return parts.join(", ") || "none now";
}

function inWords(flow, known, primary, secondary) {
  if (!known) return `Rates are known after a second: ${UNKNOWN}`;
  const parts = [
    flow.primary > 0 ? `${rate(flow.primary)} to ${named("primary", primary)}` : "",
    flow.backlog > 0 ? `${rate(flow.backlog)} to the backlog on ${secondary?.name ?? ""}` : "",
    flow.spool > 0 ? `${rate(flow.spool)} to the spool` : "",
    flow.failed > 0 ? `${rate(flow.failed)} fail` : "",
  ].filter(Boolean);
  return parts.length ? `Sends go now: ${parts.join(", ")}.` : "No client sends now.";
}

