// Messages as elements. What a user wrote is shown as it is; a reply has its Markdown rendered.

import { button, count, element, plural, size } from "./dom.js";
import { rendered } from "./markdown.js";

const ENDS = {
  length: "The reply was cut: it was as long as it may be.",
  loop: "The reply was ended: it went round in a circle.",
  cancelled: "Stopped.",
};

/** An element for a message, and what brings a reply's up to date.
 *  update(running, again): whether the reply is under way, and what asks for it once more
 */
export function messageElement(message) {
  const mine = message.role === "user";
  const node = element("li", { class: message.role }, element("h2", { class: "unseen" }, mine ? "You" : "Reply"));
  if (mine) {
    node.append(...message.files.map(fileElement), element("p", { class: "said" }, message.text));
    return { node, update() {} };
  }
  const thinking = element("details", { class: "thought" }, element("summary", {}, "Thoughts"), element("p"));
  const said = element("div", { class: "said" });
  const foot = element("div", { class: "foot" });
  node.append(thinking, said, foot);
  const update = (running, again = null) => {
    thinking.hidden = !message.thought;
    thinking.lastChild.textContent = message.thought;
    said.replaceChildren(...rendered(message.text));
    node.setAttribute("aria-busy", running);
    if (!running) foot.replaceChildren(...footOf(message, again));
  };
  return { node, update };
}

function fileElement({ name, text }) {
  const shown = element("details", { class: "file" }, element("summary", {}, name, " ", sizeOf(text)));
  shown.addEventListener("toggle", () => {
    if (shown.open && shown.childElementCount === 1) shown.append(element("pre", { tabindex: "0" }, text));
  });
  return shown;
}

export function sizeOf(text) {
  return element("span", { class: "faint" }, size(new Blob([text]).size));
}

function footOf({ reason, failure, figures }, again) {
  const parts = [];
  if (failure) parts.push(element("p", { class: "failure" }, failure));
  else if (ENDS[reason]) parts.push(element("p", { class: "faint" }, ENDS[reason]));
  if (again && (failure || reason === "cancelled")) parts.push(button("Try again", again));
  if (figures) {
    const read = figures.n_known
      ? `${plural(figures.n_prompt, "token")}, ${count(figures.n_known)} of them known already`
      : `${plural(figures.n_prompt, "token")} read`;
    parts.push(element("p", { class: "faint" }, `${read} · ${count(figures.n_said)} said`));
  }
  return parts;
}
