// Conversations, kept in this browser: one entry of localStorage each, so that tabs do not overwrite each other. Where the
// server keeps conversations, new ones are kept there, and those of this browser stay in it.
//
// A conversation: { id, title, at, messages, draft, figures, settings }
//   at: when it was last written to, in ms; draft: what was typed and not sent; figures: of the last reply
//   settings: see settings.js; null = everything as the server does it
// A message: { role: "user", text, files: [{ name, text }] }
//   or { role: "assistant", text, thought, reason, failure, figures }

import * as api from "./api.js";

const PREFIX = "edgekv.conversation.";
const COVERAGE = "edgekv.coverage.";
const channel = new BroadcastChannel("edgekv.conversations"); // to other tabs: what this one had the server keep

let there = null; // by id: conversations of the server, as texts of JSON; null = it keeps none
let saving = Promise.resolve(); // one after another, so that the newest text wins
let changed = () => {};

export function created() {
  const id = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  return { id, title: "", at: Date.now(), messages: [], draft: "", figures: null, settings: null };
}

/** All conversations of this browser, the newest first. */
export function all() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => restored(localStorage.getItem(name)));
  return found.sort((one, other) => other.at - one.at);
}

function restored(text) {
  const conversation = JSON.parse(text);
  const last = conversation.messages.at(-1);
  if (last?.role === "assistant" && !last.reason) last.failure ??= "The page was closed before the reply ended.";
  return conversation;
}

/** Keeps a conversation; resolves to a sentence for the reader if that fails, else to "". */
export async function save(conversation) {
  const { id } = conversation;
  if (there === null || localStorage.getItem(PREFIX + id) !== null)
    return put(PREFIX + id, conversation)
      ? ""
      : "This browser has no room left: what is new here is lost with the page. Delete other conversations.";
  const text = JSON.stringify(conversation);
  if (there.get(id) === text) return "";
  there.set(id, text);
  const failure = await told(() => api.keep(id, text), { id, text });
  if (failure && there.get(id) === text) there.delete(id);
  return failure;
}

export async function remove({ id }) {
  const isThere = Boolean(there?.delete(id));
  localStorage.removeItem(PREFIX + id);
  localStorage.removeItem(COVERAGE + id);
  return isThere ? told(() => api.forget(id), { id, text: null }) : "";
}

/** Have the server keep new conversations, and call back with those that changed there. Throws as the server does. */
export async function keepThere() {
  await saving;
  there ??= new Map();
  const before = new Map(there);
  const found = await api.conversations();
  for (const id of new Set([...before.keys(), ...found.keys()])) {
    const text = found.get(id);
    if (text === before.get(id) || there.get(id) !== before.get(id)) continue; // the same, or saved here meanwhile
    if (text === undefined) there.delete(id);
    else there.set(id, text);
    changed(id, text === undefined ? null : restored(text));
  }
}

/** Have the server do something, after all that it was asked to do before, and tell other tabs; resolves as `save`. */
function told(ask, news) {
  const asked = saving.then(ask).then(
    () => {
      channel.postMessage(news);
      return "";
    },
    (error) => `The server does not keep what is new here, and it is lost with the page. ${error.message}`,
  );
  saving = asked;
  return asked;
}

/** What was kept after the last reply. It goes where there is no room: the next reply brings it again. */
export function saveCoverage(conversation, coverage) {
  if (!put(COVERAGE + conversation.id, coverage)) localStorage.removeItem(COVERAGE + conversation.id);
}

export function coverage(conversation) {
  try {
    return JSON.parse(localStorage.getItem(COVERAGE + conversation.id));
  } catch {
    return null;
  }
}

/** Calls back with the conversation that another tab changed, or null where it was deleted. */
export function watch(callback) {
  changed = callback;
  addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(PREFIX)) changed(key.slice(PREFIX.length), newValue === null ? null : JSON.parse(newValue));
  });
  channel.addEventListener("message", ({ data: { id, text } }) => {
    if (there === null) return;
    if (text === null) there.delete(id);
    else there.set(id, text);
    changed(id, text === null ? null : JSON.parse(text));
  });
}

function put(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or switched off
  }
}
