// Messages as elements. What a user wrote is shown as it is; a reply has its Markdown rendered.

import { colour } from "./colours.js";
import { button, count, element, plural, size } from "./dom.js";
import { rendered } from "./markdown.js";

const ENDS = {
  length: "The reply was cut: it was as long as it may be.",
  loop: "The reply was ended: it went round in a circle.",
  cancelled: "Stopped.",
};

/** Whether a reply can be gone on with: it has a beginning, and ended before the model meant it to. */
export const isCut = ({ text, reason, failure }) => text !== "" && (reason === "length" || reason === "cancelled" || Boolean(failure));

/** An element for a message, and what brings a reply's up to date.
 *  edit: what is done to a user's message, or null where none may be changed
 *  update(running, actions): whether the reply is under way; what can be done with it: { again, goOn }, or null
 */
export function messageElement(message, edit = null) {
  const mine = message.role === "user";
  const node = element("li", { class: message.role }, element("h2", { class: "unseen" }, mine ? "You" : "Reply"));
  if (mine) {
    node.append(...message.files.map(fileElement), element("p", { class: "said" }, message.text));
    if (edit) node.append(element("div", { class: "actions" }, button("Edit", edit)));
    return { node, update() {} };
  }
  const thinking = element("details", { class: "thought" }, element("summary", {}, "Thoughts"), element("p"));
  const said = element("div", { class: "said" });
  const foot = element("div", { class: "foot" });
  node.append(thinking, said, foot);
  const update = (running, actions = null) => {
    thinking.hidden = !message.thought;
    thinking.lastChild.textContent = message.thought;
    said.replaceChildren(...rendered(message.text));
    node.setAttribute("aria-busy", running);
    if (running) return foot.replaceChildren();
    for (const code of said.querySelectorAll("pre")) {
      code.after(copying("Copy code", () => code.textContent));
      colour(code.firstChild);
    }
    foot.replaceChildren(...footOf(message, actions));
  };
  return { node, update };
}

/** A button that copies a text, or nothing where the browser lets no page copy: without HTTPS, on another machine. */
function copying(name, text) {
  if (!navigator.clipboard) return "";
  const made = button(name, async () => {
    await navigator.clipboard.writeText(text());
    made.textContent = "Copied";
    setTimeout(() => (made.textContent = name), 2000);
  });
  made.classList.add("copy");
  return made;
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

function footOf(message, actions) {
  const { text, reason, failure, figures } = message;
  const parts = [];
  if (failure) parts.push(element("p", { class: "failure" }, failure));
  else if (ENDS[reason]) parts.push(element("p", { class: "faint" }, ENDS[reason]));
  const buttons = text ? [copying("Copy", () => text)] : [];
  if (actions) {
    if (isCut(message)) buttons.push(button("Continue", actions.goOn));
    buttons.push(button("Try again", actions.again));
  }
  if (buttons.length) parts.push(element("div", { class: "actions" }, ...buttons));
  if (figures) parts.push(element("p", { class: "faint" }, figuresOf(figures)));
  return parts;
}

function figuresOf({ n_prompt, n_known, n_said, per_second }) {
  const read = n_known
    ? `${plural(n_prompt, "token")}, ${count(n_known)} of them known already`
    : `${plural(n_prompt, "token")} read`;
  return `${read} · ${count(n_said)} said${per_second ? `, ${per_second.toFixed(1)} a second` : ""}`;
}
