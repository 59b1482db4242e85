// The Markdown that models write most: code, lists, emphasis. Whatever else there is stays as it was written.

import { element } from "./dom.js";

const FENCE = /^ {0,3}(```+|~~~+)(.*)$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const HEADING = /^#{1,6} +(.*?) *#*$/;
const INLINE = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<!\w)([*_])(?=[^\s*_])(.+?)(?<=[^\s*_])\4(?!\w)/s;

/** Elements for a text. */
export function rendered(text) {
  const blocks = [];
  const lines = text.split("\n");
  let paragraph = [];
  const close = () => {
    if (paragraph.length) blocks.push(element("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const fence = FENCE.exec(lines[i]);
    const heading = HEADING.exec(lines[i]);
    if (fence) {
      close();
      const end = closing(lines, i + 1, fence[1]);
      blocks.push(element("pre", { tabindex: "0" }, element("code", {}, lines.slice(i + 1, end).join("\n"))));
      i = end;
    } else if (ITEM.test(lines[i])) {
      close();
      const [list, next] = listed(lines, i);
      blocks.push(list);
      i = next - 1;
    } else if (heading) {
      close();
      blocks.push(element("p", {}, element("strong", {}, ...inline(heading[1]))));
    } else if (lines[i].trim() === "") {
      close();
    } else {
      paragraph.push(lines[i]);
    }
  }
  close();
  return blocks;
}

/** The line that closes a fence, or the number of lines: a reply that is still written has none yet. */
function closing(lines, from, fence) {
  const end = lines.findIndex((line, i) => i >= from && line.trim().startsWith(fence) && /^[`~]+$/.test(line.trim()));
  return end < 0 ? lines.length : end;
}

/** The list that begins at a line, with the lists within it, and the line after it. least: indent of its items */
function listed(lines, from, least = 0) {
  const [, indent, number] = ITEM.exec(lines[from]);
  const list = element(number === undefined ? "ul" : "ol", number > 1 ? { start: number } : {});
  let i = from;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (item && item[1].length > indent.length + 1 && list.lastChild) {
      const [inner, next] = listed(lines, i, item[1].length - 1);
      list.lastChild.append(inner);
      i = next;
    } else if (item && item[1].length >= least && (item[2] === undefined) === (number === undefined)) {
      list.append(element("li", {}, ...inline(item[3])));
      i++;
    } else if (!item && lines[i].startsWith(`${indent}  `) && lines[i].trim() !== "") {
      list.lastChild.append("\n", ...inline(lines[i].trim())); // a line that goes on with the item
      i++;
    } else if (lines[i].trim() === "" && ITEM.test(lines[i + 1] ?? "")) {
      i++;
    } else {
      break;
    }
  }
  return [list, i];
}

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found; (found = INLINE.exec(rest)); rest = rest.slice(found.index + found[0].length)) {
    const [, tick, code, strong, , emphasis] = found;
    nodes.push(rest.slice(0, found.index));
    if (tick) nodes.push(element("code", {}, code));
    else if (strong) nodes.push(element("strong", {}, ...inline(strong)));
    else nodes.push(element("em", {}, ...inline(emphasis)));
  }
  return [...nodes, rest];
}
