// A list of any number of rows of one height, of which only those in sight are elements. To a screen
// reader it is a listbox whose options say their place.

import { el } from "./dom.js";

const HEIGHT = 26;
const MARGIN = 12; // rows that are made beyond what is in sight

export class VirtualList {
  /**
   * @param {object} options
   * @param {string} options.label
   * @param {(place: number) => HTMLElement} options.draw Makes the option of a place.
   * @param {(place: number) => void} options.onSelect
   * @param {(isAtEnd: boolean) => void} [options.onScroll]
   */
  constructor({ label, draw, onSelect, onScroll = () => {} }) {
    this.draw = draw;
    this.onSelect = onSelect;
    this.count = 0;
    this.selected = -1;
    this.canvas = el("div", { class: "rows", role: "presentation" });
    this.node = el("div", {
      class: "list",
      role: "listbox",
      tabindex: "0",
      "aria-label": label,
      onscroll: () => {
        this.paint();
        onScroll(this.isAtEnd());
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.onKey(event),
      onclick: (/** @type {MouseEvent} */ event) => {
        const option = /** @type {HTMLElement} */ (event.target).closest("[data-place]");
        if (option) this.select(Number(option.getAttribute("data-place")));
      },
    });
    this.node.append(this.canvas);
    this.sizes = new ResizeObserver(() => this.paint());
    this.sizes.observe(this.node);
  }

  isAtEnd() {
    return this.node.scrollTop + this.node.clientHeight >= this.count * HEIGHT - HEIGHT;
  }

  /** @param {number} count */
  resize(count) {
    this.count = count;
    this.canvas.style.height = `${count * HEIGHT}px`;
    if (this.selected >= count) this.selected = -1;
    this.paint();
  }

  toEnd() {
    this.node.scrollTop = this.count * HEIGHT;
    this.paint();
  }

  paint() {
    cancelAnimationFrame(this.frame ?? 0);
    this.frame = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / HEIGHT) - MARGIN);
    const inSight = Math.ceil(this.node.clientHeight / HEIGHT) + 2 * MARGIN;
    const last = Math.min(this.count, first + inSight);
    const options = [];
    for (let place = first; place < last; place++) {
      const option = this.draw(place);
      option.id = this.idOf(place);
      option.setAttribute("role", "option");
      option.setAttribute("data-place", String(place));
      option.setAttribute("aria-posinset", String(place + 1));
      option.setAttribute("aria-setsize", String(this.count));
      option.setAttribute("aria-selected", String(place === this.selected));
      option.style.transform = `translateY(${place * HEIGHT}px)`;
      options.push(option);
    }
    this.canvas.replaceChildren(...options);
    if (this.selected >= first && this.selected < last) {
      this.node.setAttribute("aria-activedescendant", this.idOf(this.selected));
    } else this.node.removeAttribute("aria-activedescendant");
  }

  /** @param {number} place */
  idOf(place) {
    return `row-${place}`;
  }

  /** Choose a row, and bring it into sight. @param {number} place */
  select(place, tells = true) {
    if (place < 0 || place >= this.count) return;
    this.selected = place;
    const [top, height] = [place * HEIGHT, this.node.clientHeight];
    if (top < this.node.scrollTop) this.node.scrollTop = top - HEIGHT;
    else if (top + HEIGHT > this.node.scrollTop + height) this.node.scrollTop = top - height + 2 * HEIGHT;
    this.paint();
    if (tells) this.onSelect(place);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.node.clientHeight / HEIGHT) - 1);
    const moves = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    const move = /** @type {Record<string, number>} */ (moves)[event.key];
    const from = this.selected < 0 ? (move > 0 ? -1 : this.count) : this.selected;
    this.select(Math.min(this.count - 1, Math.max(0, from + move)));
    if (event.key === "End") this.toEnd();
  }
}
