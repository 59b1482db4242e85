// The gauge of memory under the ceiling, the figures of a conversation, and the map of what is kept of it.

import { byId, count, element, mebibytes, svg } from "./dom.js";

const ARCHIVED = 5; // no head holds it, but a recall can bring it back
export const LEVELS = [0, 1, 2, 3, 4, ARCHIVED]; // as `edgekv inspect` has them: none, quarters of the heads, archived

const NAMES = ["no head", ...[25, 50, 75, 100].map((share) => `up to ${share} % of the heads`), "no head, but archived"];

/** Memory in bytes: the ledger's entries (none = the model's process has died), the peak, and the ceiling. */
export function showMemory({ ledger, peak, ceiling }) {
  const gauge = byId("gauge");
  const shown = ledger.reduce((total, { held_bytes }) => total + held_bytes, 0) || peak;
  const cells = ledger.find(({ owner }) => owner === "kv")?.held_bytes ?? 0;
  const most = Math.max(shown, peak);
  const across = (bytes) => Math.min(110, (100 * bytes) / ceiling); // the ceiling's line is at 100
  const text = `${mebibytes(shown)} of ${mebibytes(ceiling)} MiB`;
  gauge.setAttribute("aria-valuemax", ceiling);
  gauge.setAttribute("aria-valuenow", shown);
  gauge.setAttribute("aria-valuetext", text);
  const own = Math.max(0, shown - cells); // of the runtime itself: weights, graphs, Python
  gauge.querySelector(".held").setAttribute("width", across(own));
  gauge.querySelector(".cells").setAttribute("x", across(own));
  gauge.querySelector(".cells").setAttribute("width", across(shown) - across(own));
  gauge.querySelector(".peak").setAttribute("d", `M${across(most)} 0v10`);
  byId("held").replaceChildren(text, element("span", {}, `, at most ${mebibytes(most)} so far`));
}

/** What a conversation came to, in tokens; null = nothing yet */
export function showFigures(figures) {
  const rows = figures
    ? {
        "Tokens seen": figures.seen,
        "Tokens kept": figures.kept,
        "Tokens evicted": figures.evicted,
        ...(figures.archived ? { "Of these archived": figures.archived } : {}),
        "Evictions for this reply": figures.evictions,
        "Budget, in cells": figures.budget,
      }
    : {};
  byId("figures").replaceChildren(
    ...Object.entries(rows).map(([name, n]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, count(n))),
    ),
  );
}

/** The map: the conversation from left to right, in shades. coverage: [{ role, runs: [[text, shade]] }], or null */
export function showMap(coverage) {
  const runs = (coverage ?? []).flatMap((turn) => turn.runs);
  const lines = LEVELS.map(() => "");
  const lengths = LEVELS.map(() => 0);
  let at = 0;
  for (const [text, shade] of runs) {
    lines[shade] += `M${at} .5h${text.length}`;
    lengths[shade] += text.length;
    at += text.length;
  }
  const map = byId("map");
  map.setAttribute("viewBox", `0 0 ${Math.max(1, at)} 1`);
  map.replaceChildren(...LEVELS.map((level) => svg("path", { class: `s${level}`, d: lines[level] })));
  const part = (length) => `${Math.round((100 * length) / at)} %`;
  const share = at && part(at - lengths[0] - lengths[ARCHIVED]);
  const archived = lengths[ARCHIVED] ? `, ${part(lengths[ARCHIVED])} is archived` : "";
  byId("share").textContent = at
    ? `${share} of the text is held by at least one head${archived}`
    : "It is known after a reply.";
  map.setAttribute("aria-label", at ? `A map of the conversation: ${share} of it is kept` : "An empty map");
  byId("show-kept").disabled = at === 0;
}

/** The conversation in shades, in a dialog. */
export function openKept(coverage) {
  byId("legend").replaceChildren(
    "Held by: ",
    ...LEVELS.flatMap((level) => [
      element("span", { class: `s${level}` }, NAMES[level]),
      " ",
    ]),
  );
  const names = { system: "System message", user: "You", assistant: "Reply" };
  byId("coverage").replaceChildren(
    ...coverage.map(({ role, runs }) =>
      element(
        "section",
        {},
        element("h3", {}, names[role] ?? role),
        element("p", { class: "text" }, ...runs.map(([text, shade]) => element("span", { class: `s${shade}` }, text))),
      ),
    ),
  );
  byId("kept").showModal();
}
