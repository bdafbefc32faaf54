// The backlog in the last hour: one curve for its depth, one for its age, and one for each queue.

import { Rows, buttonOf, byId, drawn, element, setContent, setText } from "./dom.js";
import { UNKNOWN, count, shortSpan, span } from "./words.js";

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

const topOf = (values) => Math.max(1, ...known(values));

function shapesOf(ages, values, x, y) {
  return pieces(ages, values).map((piece) => {
    const points = piece.map(([age, value]) => [x(age).toFixed(1), y(value).toFixed(1)]);
    if (points.length === 1) return drawn("circle", { class: "dot", cx: points[0][0], cy: points[0][1], r: 2 });
    return drawn("polyline", { class: "curve", points: points.map((point) => point.join(",")).join(" ") });
  });
}

// A curve in a row of a table, without axes.
function curve(ages, values, label) {
  const [width, height, top] = [160, 26, topOf(values)];
  const shapes = shapesOf(ages, values, (age) => width * (1 - age / HOUR), (value) => height - 2 - (height - 6) * (value / top));
  const ground = drawn("line", { class: "ground", x1: 0, y1: height - 1, x2: width, y2: height - 1 });
  return drawn("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ground, ...shapes);
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400]; // seconds between two marks
const NICE = [1, 2, 2.5, 5, 10];
const MARKS = 3; // above zero, at most
const EVERY = 15 * 60; // seconds between two times

// The distance of marks: a round number of messages, or a round time.
function stepOf(top, isTime) {
  const least = top / MARKS;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = (isTime && STEPS.find((each) => each >= least)) || NICE.find((each) => each * power >= least) * power;
  return Math.max(1, Math.ceil(step));
}

// A curve with its axes: values with their unit at the left, times of the day below.
function chart(ages, values, { label, unit, isTime, now }) {
  const [left, right, above, width, height, floor] = [58, 12, 10, 440, 150, 126];
  const step = stepOf(topOf(values), isTime);
  const top = step * Math.ceil(topOf(values) / step);
  const x = (age) => left + (width - left - right) * (1 - age / HOUR);
  const y = (value) => floor - (floor - above) * (value / top);
  const lines = Array.from({ length: top / step + 1 }, (_, index) => index * step).flatMap((value) => [
    drawn("line", { class: "ground", x1: left, y1: y(value), x2: width - right, y2: y(value) }),
    drawn("text", { class: "small", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, isTime ? shortSpan(value) : unit(value)),
  ]);
  const times = Array.from({ length: HOUR / EVERY + 1 }, (_, index) => index * EVERY).flatMap((age) => [
    drawn("line", { class: "ground", x1: x(age), y1: floor, x2: x(age), y2: floor + 4 }),
    drawn("text", { class: "small", x: x(age), y: height - 6, "text-anchor": age ? "middle" : "end" }, age ? minuteOf(now - age) : "now"),
  ]);
  const svg = { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
  return drawn("svg", svg, ...lines, ...times, ...shapesOf(ages, values, x, y));
}

const minuteOf = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

function inWords(name, values, unit) {
  const found = known(values);
  if (found.length === 0) return `${name} in the last hour: unknown`;
  return `${name} in the last hour: at most ${unit(Math.max(...found))}, last ${unit(lastOf(values))}`;
}

function figure(ages, values, name, options) {
  const label = inWords(name, values, options.unit);
  return element("figure", {}, element("figcaption", {}, label), chart(ages, values, { ...options, label }));
}

let purge = null; // from a queue's name: opens the dialog
let showsEmpty = false; // each empty queue in a row of its own
let again = () => {};

const rows = new Rows(byId("queue-rows"), ({ queue, depth }) => {
  const button = depth === null
    ? buttonOf("Show each", `Show each of the ${queue}`, () => {
      showsEmpty = true;
      again();
    })
    : buttonOf("Purge…", `Purge ${queue}…`, () => purge(queue));
  return [element("th", { scope: "row" }), element("td", { class: "short" }), element("td", { class: "short" }), element("td"),
    element("td", { class: depth === null ? "short acts" : "short acts steers" }, button)];
});

// Empty queues are one row, unless each of them was asked for.
function rowsOf(queues) {
  const empty = queues.filter(([, depth]) => lastOf(depth.pending) === 0);
  const all = queues.map(([queue, depth]) => [queue, { queue, depth }]);
  if (empty.length < 2 || showsEmpty) return all;
  const others = all.filter(([, { depth }]) => lastOf(depth.pending) !== 0);
  return [...others, ["", { queue: `${count(empty.length)} ${others.length ? "other " : ""}queues, which are empty`, depth: null }]];
}

// `at` is the date of the status: the gateway's clock counts. `toPurge(queue)` opens the dialog; null: it isn't allowed.
export function showHistory(history, at, toPurge) {
  purge = toPurge;
  again = () => showHistory(history, at, toPurge);
  const now = Date.parse(at) / 1000;
  const ages = history.at.map((date) => now - Date.parse(date) / 1000);
  byId("history").hidden = ages.length === 0;
  setContent(byId("curves"),
    figure(ages, history.pending, "Waiting messages", { unit: count, now }),
    figure(ages, history.oldest_age, "Age of the oldest message", { unit: span, isTime: true, now }));
  rows.show(rowsOf(Object.entries(history.queues)), ([name, waiting, age, cell, tools], { queue, depth }) => {
    setText(name, queue);
    if (depth === null) {
      setText(waiting, "0");
      return;
    }
    tools.firstChild.hidden = purge === null;
    setText(waiting, count(lastOf(depth.pending)));
    setText(age, lastOf(depth.pending) === 0 ? UNKNOWN : span(lastOf(depth.oldest_age)));
    setContent(cell, curve(ages, depth.pending, inWords(`Waiting messages on ${queue}`, depth.pending, count)));
  });
}
