// Makes and changes elements. Text is only ever set as text: names of entities are chosen by others.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// The texts of the headings of a table, for cells that become lines of a card on a phone.
const headingsOf = (body) => [...body.parentNode.querySelectorAll("thead th")].map((each) => each.textContent);

// Roles in words: a table that is shown as cards stays a table for a screen reader.
export function nameRoles() {
  const roles = { table: "table", "thead, tbody": "rowgroup", "thead tr": "row", "thead th": "columnheader" };
  for (const [selector, role] of Object.entries(roles)) {
    for (const each of document.querySelectorAll(selector)) each.setAttribute("role", role);
  }
}

export const element = (tag, attributes = {}, ...children) =>
  made(document.createElement(tag), attributes, children);

export function buttonOf(text, label, act) {
  const button = element("button", { type: "button", "aria-label": label }, text);
  button.addEventListener("click", act);
  return button;
}

export const drawn = (tag, attributes = {}, ...children) =>
  made(document.createElementNS(SVG, tag), attributes, children);

// Sets the text if it differs, so that a screen reader and a selection aren't disturbed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Replaces the content if it differs.
export function setContent(node, ...children) {
  const fresh = element(node.tagName, {}, ...children);
  const same = fresh.childNodes.length === node.childNodes.length
    && [...fresh.childNodes].every((child, index) => child.isEqualNode(node.childNodes[index]));
  if (!same) node.replaceChildren(...fresh.childNodes);
}

// Words with a colour; the word tells the same to those who don't see the colour.
export const state = (word, tone) => element("span", { class: "state", "data-tone": tone ?? "" }, word);

// Terms with their descriptions (texts or elements); those that are null are left out.
export function setTerms(list, terms) {
  const known = terms.filter(([, value]) => value !== null);
  setContent(list, ...known.flatMap(([term, value]) => [
    element("dt", {}, term), element("dd", {}, ...(Array.isArray(value) ? value : [value])),
  ]));
}

// The rows of a table, which are kept while their items exist, so that focus isn't lost.
export class Rows {
  #body;
  #make; // from a key and its item: the cells of a new row
  #rows = new Map();

  constructor(body, make) {
    this.#body = body;
    this.#make = make;
  }

  // `items` have keys: [[key, item], ...]. `fill` is called with the cells and the item.
  show(items, fill) {
    const keys = new Set(items.map(([key]) => key));
    for (const [key, row] of this.#rows) {
      if (!keys.has(key)) {
        row.remove();
        this.#rows.delete(key);
      }
    }
    let next = this.#body.firstElementChild;
    for (const [key, item] of items) {
      let row = this.#rows.get(key);
      if (row === undefined) {
        row = element("tr", { role: "row" }, ...this.#make(item));
        headingsOf(this.#body).forEach((text, index) => {
          row.children[index].setAttribute("data-label", text);
          row.children[index].setAttribute("role", row.children[index].scope ? "rowheader" : "cell");
        });
        this.#rows.set(key, row);
      }
      fill([...row.children], item);
      if (row === next) next = next.nextElementSibling;
      else this.#body.insertBefore(row, next);
    }
  }
}
