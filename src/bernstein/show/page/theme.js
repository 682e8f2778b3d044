// Light or dark: what the system says, until somebody chooses.

import { el } from "./dom.js";

const NAMES = ["auto", "light", "dark"];
const SIGNS = ["◐", "☀", "☾"];

export function addThemeButton() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = el("button", { type: "button", class: "theme" });
  let chosen = Math.max(0, NAMES.indexOf(stored()));
  const show = () => {
    const isDark = NAMES[chosen] === "dark" || (NAMES[chosen] === "auto" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.textContent = `${SIGNS[chosen]} ${NAMES[chosen]}`;
    button.setAttribute("aria-label", `Colours: ${NAMES[chosen]}`);
    dispatchEvent(new Event("theme")); // for what is drawn
  };
  button.addEventListener("click", () => {
    chosen = (chosen + 1) % NAMES.length;
    store(NAMES[chosen]);
    show();
  });
  system.addEventListener("change", show);
  show();
  document.querySelector("header")?.append(button);
}

// A page from a file may have no store: then a choice holds for as long as it is open.

function stored() {
  try {
    return localStorage.getItem("theme") ?? "auto";
  } catch {
    return "auto";
  }
}

/** @param {string} name */
function store(name) {
  try {
    localStorage.setItem("theme", name);
  } catch {
    // see above
  }
}
