// What a screen reader is told of a reply: whole sentences, politely, one after another.

import { byId, element } from "./dom.js";

const END = /[.!?:]\s|\n/g;
let waiting = "";

export function hush() {
  waiting = "";
  byId("spoken").replaceChildren();
}

export function speak(text) {
  waiting += text;
  const last = [...waiting.matchAll(END)].at(-1);
  if (!last) return;
  const end = last.index + last[0].length;
  say(waiting.slice(0, end));
  waiting = waiting.slice(end);
}

export function finish() {
  say(waiting);
  waiting = "";
}

function say(text) {
  if (text.trim()) byId("spoken").append(element("p", {}, text));
}
