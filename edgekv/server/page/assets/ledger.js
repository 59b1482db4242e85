// The ledger: who holds how many bytes under the ceiling, and what a lower ceiling would take first.

import { byId, element, mebibytes } from "./dom.js";

// by its name here, the parts of the plan that an owner has; docs/plans.md says what each part is
const OWNERS = {
  Weights: ["weights", "repacking", "slots"],
  Cells: ["kv"],
  "Windows, states": ["state"],
  "Chats at rest": ["swap"], // swapped out
  "Work of a block": ["compute", "outputs", "workspace", "bookkeeping", "graphs"],
  Grammars: ["grammars"],
  "The program": ["python", "vocabulary", "rounding", "margin"],
};

/** entries: [{ owner, planned_bytes, held_bytes, rank }], of all parts; ceiling: in bytes */
export function showLedger(entries, ceiling) {
  const owners = owned(entries).filter(({ planned, held }) => planned || held);
  byId("owners").replaceChildren(...owners.map((owner) => row(owner, ceiling)));
  const order = owners.filter(({ rank }) => rank).sort((one, other) => one.rank - other.rank);
  const taken = order.map(({ name }) => name.toLowerCase()).join(", then ");
  byId("order").textContent = taken && `A lower ceiling takes ${taken}. All else stays.`;
}

/** Returns { name, planned, held, rank } of each owner. */
function owned(entries) {
  const parts = new Map(entries.map((entry) => [entry.owner, entry]));
  return Object.entries(OWNERS).map(([name, names]) => {
    const own = names.map((part) => parts.get(part)).filter(Boolean);
    const sum = (field) => own.reduce((total, entry) => total + entry[field], 0);
    return { name, planned: sum("planned_bytes"), held: sum("held_bytes"), rank: Math.max(0, ...own.map((entry) => entry.rank)) };
  });
}

function row({ name, planned, held }, ceiling) {
  const line = element(
    "tr",
    {},
    element("th", { scope: "row" }, name),
    element("td", {}, mebibytes(held)),
    element("td", {}, mebibytes(planned)),
  );
  const share = (bytes) => `${Math.min(100, (100 * bytes) / ceiling)}%`;
  line.style.setProperty("--held-share", share(held));
  line.style.setProperty("--planned-share", share(planned));
  return line;
}
