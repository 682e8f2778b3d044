// Light or dark: what the system says, until somebody chooses.

import { el } from "./dom.js";

const NAMES = ["auto", "light", "dark"];

export function addThemeButton() {
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem("theme") ?? "auto";
    } catch {
      return "auto"; // a page from a file may have no store
    }
  };
  const button = el("button", { type: "button", class: "theme" });
  const set = (/** @type {string} */ name) => {
    root.dataset.theme = name;
    button.textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[name] ?? name;
    button.setAttribute("aria-label", `Colours: ${name}`);
    dispatchEvent(new Event("resize"));
  };
  button.addEventListener("click", () => {
    const next = NAMES[(NAMES.indexOf(root.dataset.theme ?? "auto") + 1) % NAMES.length];
    try {
      localStorage.setItem("theme", next);
    } catch {
      // then it holds for this page
    }
    set(next);
  });
  set(NAMES.includes(stored()) ? stored() : "auto");
  document.querySelector("header")?.append(button);
}
