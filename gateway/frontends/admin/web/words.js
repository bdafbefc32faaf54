// Figures as people read them. An unknown figure is a dash, never 0.

export const UNKNOWN = "–";

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [minutes, rest] = [Math.floor(whole / 60) % 60, whole % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

// A round time, as at an axis.
export function shortSpan(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"]];
  const [size, name] = units.find(([each]) => seconds >= each && seconds % each === 0) ?? [1, "s"];
  return `${count(seconds / size)} ${name}`;
}

export const count = (number) =>
  number === null || number === undefined ? UNKNOWN : number.toLocaleString("en");

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return UNKNOWN;
  return `${perSecond >= 100 ? count(Math.round(perSecond)) : perSecond.toFixed(1)}/s`;
}

export function bytes(number) {
  if (number === null || number === undefined) return UNKNOWN;
  return number < 1024 ** 2 ? `${count(Math.ceil(number / 1024))} KiB` : `${count(Math.floor(number / 1024 ** 2))} MiB`;
}

export const messages = (number) => `${count(number)} ${number === 1 ? "message" : "messages"}`;

export function timeOf(text) {
  return text ? new Date(text).toLocaleTimeString("en-GB") : UNKNOWN;
}

export function dateOf(text) {
  return text ? new Date(text).toLocaleString("en-GB") : UNKNOWN;
}

// Seconds between two dates of the gateway, so that the clock of the browser doesn't matter.
export const between = (from, to) => (from ? (Date.parse(to) - Date.parse(from)) / 1000 : null);

// A state of several words, as the JSON has it.
export const wordsOf = (name) => name.replaceAll("-", " ");

// Tones of states; a state without one is neither good nor bad.
export const TONES = {
  primary: "good", suspect: "warn", secondary: "bad", "half-open": "warn", pinned: "warn",
  yes: "good", no: "bad",
  empty: "good", moving: "good", waiting: "warn", "held-back": "warn", stalled: "bad", absent: "bad",
  alive: "good", silent: "warn",
  warning: "warn", error: "bad", critical: "bad",
};
