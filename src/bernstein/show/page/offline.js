// A page of one run that asks nobody: its rows lie in the page, and are checked as it opens.

import { RunView } from "./run.js";
import { addThemeButton } from "./theme.js";
import { readRow } from "./verify.js";

const SLICE = 2000; // rows that are taken before the page is drawn again

/** What lies in the page under a name. @param {string} name */
async function unpacked(name) {
  const packed = Uint8Array.from(atob(document.getElementById(name)?.textContent?.trim() ?? ""), (char) =>
    char.charCodeAt(0),
  );
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {import("./stream.js").Listener} listener @param {Uint8Array} journal @param {string} state */
async function follow(listener, journal, state) {
  let rows = [];
  for (let at = 0; at < journal.length;) {
    const stop = journal.indexOf(10, at);
    const read = stop < 0 ? null : readRow(journal.subarray(at, stop));
    if (read === null) {
      listener.onRows(rows);
      listener.onBadRow("not_a_row");
      return listener.onState("broken");
    }
    rows.push(read);
    at = stop + 1;
    if (rows.length === SLICE) {
      listener.onRows(rows);
      rows = [];
      await new Promise((resolve) => setTimeout(resolve));
    }
  }
  listener.onRows(rows);
  listener.onState(/** @type {any} */ (state));
}

async function open() {
  const told = JSON.parse(new TextDecoder().decode(await unpacked("told")));
  const journal = await unpacked("journal");
  const view = new RunView(
    {
      runId: told.info.run_id,
      isOffline: true,
      info: told.info,
      follow: (listener) => {
        setTimeout(() => follow(listener, journal, told.state));
        return { stop: () => {} };
      },
      evidence: async () => told.evidence,
      misses: async () => told.misses,
      approvals: null,
      link: null,
      text: null,
    },
    null,
  );
  document.querySelector("main")?.replaceChildren(view.node);
}

addThemeButton();
open().catch((error) =>
  document.querySelector("main")?.replaceChildren(`This page cannot be read: ${error.message}`),
);
