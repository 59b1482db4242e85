// Code in colours. highlight.js reads it; here its tree becomes elements and text nodes, so no text is ever markup.

import { element } from "./dom.js";

let library; // asked for when the first code is shown

/** Colours an element whose text is code, if it names a language that is known. */
export async function colour(code) {
  const { language } = code.dataset;
  if (!language) return;
  library ??= import("./highlight.js");
  const { default: highlight } = await library;
  if (!highlight.getLanguage(language)) return;
  const read = highlight.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(...nodes(read._emitter.rootNode));
}

const nodes = ({ children }) => children.map((child) => (typeof child === "string" ? child : span(child)));
const span = (node) => element("span", node.scope ? { class: `hl-${node.scope.split(/[.:]/)[0]}` } : {}, ...nodes(node));
