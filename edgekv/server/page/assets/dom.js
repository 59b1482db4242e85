// What the other modules make elements with. Texts become text nodes, so nothing in them is ever markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children: nodes and texts. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A button with a name, and what it does. */
export function button(name, action, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, name);
  made.addEventListener("click", action);
  return made;
}

/** Opens a dialog; resolves to whether it was answered with yes. */
export function asked(dialog) {
  dialog.returnValue = "";
  dialog.querySelector(".cancel").onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

const numbers = new Intl.NumberFormat("en");
export const count = (n) => numbers.format(n);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const mebibytes = (bytes) => (bytes / 2 ** 20).toFixed(1);

/** A size as people say it. */
export function size(bytes) {
  if (bytes < 1000) return plural(bytes, "byte");
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
