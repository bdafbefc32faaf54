// The backlog in the last hour: one curve for its depth, one for its age, and one for each queue.

import { Rows, byId, drawn, element, setContent, setText } from "./dom.js";
import { UNKNOWN, count, span } from "./words.js";

const HOUR = 3600; // seconds
const GAP = 150; // between two samples: nobody asked meanwhile, so the curve is broken

const known = (values) => values.filter((value) => value !== null);
const lastOf = (values) => (values.length ? values.at(-1) : null);

// The pieces of the curve: each a list of [seconds before now, value] without a gap.
export function pieces(ages, values) {
  const found = [];
  let piece = [];
  values.forEach((value, index) => {
    const broken = piece.length > 0 && piece.at(-1)[0] - ages[index] > GAP;
    if ((value === null || broken) && piece.length) {
      found.push(piece);
      piece = [];
    }
    if (value !== null && ages[index] <= HOUR) piece.push([ages[index], value]);
  });
  if (piece.length) found.push(piece);
  return found;
}

function curve(ages, values, [width, height], label) {
  const top = Math.max(1, ...known(values));
  const [x, y] = [(age) => width * (1 - age / HOUR), (value) => height - 2 - (height - 6) * (value / top)];
  const shapes = pieces(ages, values).map((piece) => {
    const points = piece.map(([age, value]) => [x(age).toFixed(1), y(value).toFixed(1)]);
    if (points.length === 1) return drawn("circle", { class: "dot", cx: points[0][0], cy: points[0][1], r: 2 });
    return drawn("polyline", { class: "curve", points: points.map((point) => point.join(",")).join(" ") });
  });
  const ground = drawn("line", { class: "ground", x1: 0, y1: height - 1, x2: width, y2: height - 1 });
  return drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ground, ...shapes);
}

function inWords(name, values, unit) {
  const found = known(values);
  if (found.length === 0) return `${name} in the last hour: unknown`;
  return `${name} in the last hour: at most ${unit(Math.max(...found))}, last ${unit(lastOf(values))}`;
}

function figure(ages, values, name, unit) {
  const words = inWords(name, values, unit);
  return element("figure", {}, curve(ages, values, [420, 90], words), element("figcaption", {}, words));
}

let purge = null; // from a queue's name: opens the dialog

const rows = new Rows(byId("queue-rows"), ({ queue }) => {
  const button = element("button", { type: "button", "aria-label": `Purge ${queue}…` }, "Purge…");
  button.addEventListener("click", () => purge(queue));
  return [element("th", { scope: "row" }), element("td", { class: "short" }), element("td", { class: "short" }), element("td"),
    element("td", { class: "short steers" }, button)];
});

// `at` is the date of the status: the gateway's clock counts. `toPurge(queue)` opens the dialog; null: it isn't allowed.
export function showHistory(history, at, toPurge) {
  purge = toPurge;
  const now = Date.parse(at) / 1000;
  const ages = history.at.map((date) => now - Date.parse(date) / 1000);
  byId("history").hidden = ages.length === 0;
  setContent(byId("curves"),
    figure(ages, history.pending, "Waiting messages", count),
    figure(ages, history.oldest_age, "Age of the oldest message", span));
  const queues = Object.entries(history.queues).map(([queue, depth]) => [queue, { queue, depth }]);
  rows.show(queues, ([name, waiting, age, cell, tools], { queue, depth }) => {
    tools.firstChild.hidden = purge === null;
    setText(name, queue);
    setText(waiting, count(lastOf(depth.pending)));
    setText(age, lastOf(depth.pending) === 0 ? UNKNOWN : span(lastOf(depth.oldest_age)));
    setContent(cell, curve(ages, depth.pending, [160, 26], inWords(`Waiting messages on ${queue}`, depth.pending, count)));
  });
}
