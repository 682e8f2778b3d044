// What is shown by the address: #/ the runs, #/run/ID[/ROW] one of them, #/diff/A/B two. The token in
// #token=… is exchanged for a cookie, and taken out of the address.

import { ask, bearer, runPath } from "./api.js";
import { Approvals } from "./approvals.js";
import { DiffView } from "./diff.js";
import { el, fill } from "./dom.js";
import { RunView } from "./run.js";
import { RunsView } from "./runs.js";
import { Stream } from "./stream.js";
import { RowText } from "./text.js";
import { addThemeButton } from "./theme.js";

const main = /** @type {HTMLElement} */ (document.querySelector("main"));
/** @type {{ node: HTMLElement, close: () => void } | null} */
let view = null;
let turn = 0;

/** @param {{ node: HTMLElement, close: () => void }} next */
function show(next) {
  view?.close();
  view = next;
  main.replaceChildren(next.node);
  document.title = `${next.node.querySelector("h1")?.textContent ?? "bernstein"} · bernstein`;
}

/** @param {string} text */
const message = (text) => ({
  node: el(
    "section",
    { class: "message" },
    el("p", { role: "alert" }, text),
    el("p", {}, el("a", { href: "#/" }, "the runs")),
  ),
  close: () => {},
});

function door(note = "") {
  const token = /** @type {HTMLInputElement} */ (
    el("input", {
      type: "password",
      autocomplete: "off",
      "aria-label": "Read token",
      placeholder: "Read token",
    })
  );
  const enter = async (/** @type {Event} */ event) => {
    event.preventDefault();
    await letIn(token.value.trim());
  };
  show({
    node: el(
      "section",
      { class: "message" },
      el("h1", {}, "Show the read token"),
      el("p", {}, "bernstein serve printed it; or open the address that it printed."),
      note ? el("p", { class: "bad", role: "alert" }, note) : null,
      el("form", { onsubmit: enter }, token, el("button", { type: "submit" }, "Open")),
    ),
    close: () => {},
  });
  token.focus();
}

/** @param {string} token */
async function letIn(token) {
  try {
    await ask("session", { method: "POST", headers: bearer(token) });
  } catch (error) {
    return door(/** @type {Error} */ (error).message);
  }
  await route();
}

async function route() {
  const mine = ++turn;
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token !== undefined) {
    history.replaceState(null, "", `${location.pathname}#/`);
    return letIn(decodeURIComponent(token));
  }
  try {
    const [, page, one, other] = location.hash.split("/").map(decodeURIComponent);
    if (page === "run" && one) {
      const [info, session] = await Promise.all([ask(runPath(one)), ask("session")]);
      if (mine === turn)
        show(new RunView(liveSource(info, session), /^\d+$/.test(other ?? "") ? Number(other) : null));
    } else if (page === "diff" && one && other) {
      const both = await Promise.all([one, other].map((runId) => ask(runPath(runId))));
      if (mine === turn) show(new DiffView(both[0].run_id, both[1].run_id));
    } else {
      await ask("session");
      if (mine === turn) show(new RunsView());
    }
  } catch (error) {
    if (mine !== turn) return;
    const { status, message: text } = /** @type {any} */ (error);
    if (status === 401) door();
    else show(message(text));
  }
}

/** @param {any} info @param {{ decides: boolean, texts: boolean }} session @returns {import("./run.js").Source} */
function liveSource(info, session) {
  const path = runPath(info.run_id);
  return {
    runId: info.run_id,
    isOffline: false,
    info,
    follow: (listener) => new Stream(info.run_id, listener),
    evidence: () => ask(`${path}/evidence`),
    misses: () => ask(`${path}/misses`),
    approvals: session.decides ? (run) => new Approvals(info.run_id, run) : null,
    text: session.decides || session.texts ? new RowText(info.run_id, session.texts) : null,
    link: (place) => `#/run/${encodeURIComponent(info.run_id)}/${place}`,
  };
}

addThemeButton();
addEventListener("hashchange", route);
addEventListener("locked", () => door());
fill(main, el("p", { class: "soft" }, "reading"));
route();
