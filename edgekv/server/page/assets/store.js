// Conversations, kept in this browser alone: one entry of localStorage each, so that tabs do not overwrite each other.
//
// A conversation: { id, title, at, messages, draft, figures, settings }
//   at: when it was last written to, in ms; draft: what was typed and not sent; figures: of the last reply
//   settings: see settings.js; null = everything as the server does it
// A message: { role: "user", text, files: [{ name, text }] }
//   or { role: "assistant", text, thought, reason, failure, figures }

const PREFIX = "edgekv.conversation.";
const COVERAGE = "edgekv.coverage.";

export function created() {
  const id = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  return { id, title: "", at: Date.now(), messages: [], draft: "", figures: null, settings: null };
}

/** All conversations, the newest first. */
export function all() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => JSON.parse(localStorage.getItem(name)));
  for (const { messages } of found) {
    const last = messages.at(-1);
    if (last?.role === "assistant" && !last.reason) last.failure ??= "The page was closed before the reply ended.";
  }
  return found.sort((one, other) => other.at - one.at);
}

/** Whether there was room for it. */
export function save(conversation) {
  return put(PREFIX + conversation.id, conversation);
}

export function remove(conversation) {
  localStorage.removeItem(PREFIX + conversation.id);
  localStorage.removeItem(COVERAGE + conversation.id);
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
export function watch(changed) {
  addEventListener("storage", ({ key, newValue }) => {
    if (key?.startsWith(PREFIX)) changed(key.slice(PREFIX.length), newValue === null ? null : JSON.parse(newValue));
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
