// Elements, made without markup: a text of a run is only ever a text node or an attribute, and what
// in it would be no sign, or turn others around, is spelled out.

/**
 * An element with its properties and children.
 *
 * @param {string} tag
 * @param {Record<string, unknown>} [properties] `class`, `on…` listeners, `aria-…` and other
 *   attributes; false and null leave one out.
 * @param {...(Node | string | number | null | false)} children
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), /** @type {any} */ (value));
    else node.setAttribute(name, value === true ? "" : shown(String(value)));
  }
  node.append(...children.filter((child) => child !== null && child !== false).map(asNode));
  return node;
}

/** @param {any} child */
const asNode = (child) => (child instanceof Node ? child : shown(String(child)));

/**
 * Put other children into an element, unless they look the same: what is selected, focused or read
 * aloud there stays.
 *
 * @param {HTMLElement} node
 * @param {...(Node | string | null | false)} children
 */
export function fill(node, ...children) {
  const next = [...el("div", {}, ...children).childNodes];
  const isSame = (/** @type {Node} */ child, /** @type {number} */ at) =>
    child.isEqualNode(node.childNodes[at]);
  if (next.length !== node.childNodes.length || !next.every(isSame)) node.replaceChildren(...next);
}

/** Controls, and what changes the direction of a text, as signs that can be seen. @param {string} text */
export const shown = (text) =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (char) =>
    char === "\n" || char === "\t" ? char : `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

/** @param {number} ms */
export function duration(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number} count */
export const number = (count) => count.toLocaleString("en");

/** @param {number} count @param {string} one @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const MOST_CHARS = 200_000;

/** What of a text a page can bear. @param {string} text */
export const cut = (text) =>
  text.length <= MOST_CHARS
    ? text
    : `${text.slice(0, MOST_CHARS)}\n… and ${text.length - MOST_CHARS} characters more`;
