// The operator's token: in the page for as long as it is open, and nowhere else.

import { bearer } from "./api.js";
import { el } from "./dom.js";

export const operator = { token: "", name: "" };

/** What a request shows that takes the operator's token. */
export const asOperator = () => bearer(operator.token);

/** A field for the token. @param {string} what Its button says. @param {() => void} onEntered */
export function operatorForm(what, onEntered) {
  const token = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "password",
      autocomplete: "off",
      "aria-label": "Operator token",
      placeholder: "Operator token",
    })
  );
  const enter = (/** @type {Event} */ event) => {
    event.preventDefault();
    operator.token = token.value.trim();
    onEntered();
  };
  return el("form", { onsubmit: enter }, token, el("button", { type: "submit" }, what));
}
