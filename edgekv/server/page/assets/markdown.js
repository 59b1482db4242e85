// Markdown as elements. marked reads it; here its tokens become elements and text nodes, so no text is ever markup.

import { element } from "./dom.js";
import { Marked } from "./marked.js";

const SAFE = /^(https?|mailto):/i; // of links; others stay as they were written
const TOP = 3; // the page itself has headings of two levels
const tags = { html: () => undefined, tag: () => undefined }; // HTML is text like any other
const marked = new Marked({ gfm: true, tokenizer: tags });

/** Elements for a text. */
export const rendered = (text) => marked.lexer(text).flatMap(block);

const BLOCKS = {
  space: () => [],
  code: ({ text, lang }) => [element("pre", { tabindex: "0" }, element("code", language(lang), text))],
  heading: ({ depth, tokens }) => [element(`h${Math.min(6, depth + TOP - 1)}`, {}, ...inline(tokens))],
  hr: () => [element("hr")],
  blockquote: ({ tokens }) => [element("blockquote", {}, ...tokens.flatMap(block))],
  paragraph: ({ tokens }) => [element("p", {}, ...inline(tokens))],
  text: ({ tokens, text }) => (tokens ? inline(tokens) : [text]), // of an item
  list: ({ ordered, start, items }) => [
    element(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...items.map(item)),
  ],
  table: ({ header, rows }) => [
    element(
      "div",
      { class: "table", tabindex: "0" },
      element("table", {}, element("thead", {}, row(header)), element("tbody", {}, ...rows.map(row))),
    ),
  ],
};

const INLINE = {
  strong: ({ tokens }) => element("strong", {}, ...inline(tokens)),
  em: ({ tokens }) => element("em", {}, ...inline(tokens)),
  del: ({ tokens }) => element("del", {}, ...inline(tokens)),
  codespan: ({ text }) => element("code", {}, text),
  br: () => element("br"),
  escape: ({ text }) => text,
  text: ({ text }) => text,
  link: ({ href, tokens, raw }) =>
    SAFE.test(href)
      ? element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...inline(tokens))
      : raw,
};

const language = (named) => (named ? { "data-language": named.split(/\s/)[0].toLowerCase() } : {}); // for `colour`
const block = (token) => (BLOCKS[token.type] ?? (({ raw }) => [raw]))(token);
const inline = (tokens) => tokens.map((token) => (INLINE[token.type] ?? (({ raw }) => raw))(token)); // images stay text

function item({ task, checked, tokens }) {
  return element("li", {}, ...(task ? [checked ? "☑ " : "☐ "] : []), ...tokens.flatMap(block));
}

function row(cells) {
  return element(
    "tr",
    {},
    ...cells.map(({ header, align, tokens }) =>
      element(header ? "th" : "td", align ? { class: align } : {}, ...inline(tokens)),
    ),
  );
}
