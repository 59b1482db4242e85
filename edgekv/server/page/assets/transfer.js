// Conversations out of this browser, as JSON or Markdown, and back into it.

import { created } from "./store.js";

const FORMAT = "edgekv conversations 1";

/** Have the browser save a text as a file. */
export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Conversations as JSON, which `imported` reads. */
export const asJson = (conversations) => JSON.stringify({ format: FORMAT, conversations }, null, 1);

/** A conversation as a text for people. */
export function asMarkdown(title, { messages, settings }) {
  const system = settings?.system ? [`**System message:** ${settings.system}`] : [];
  const said = messages.flatMap(({ role, text, files = [] }) => [
    `## ${role === "user" ? "You" : "Reply"}`,
    ...files.map((file) => `Attached: ${file.name}`),
    text,
  ]);
  return [`# ${title}`, ...system, ...said].join("\n\n") + "\n";
}

/** The conversations of a text that `asJson` made, as new ones. Throws a TypeError for any other text. */
export function imported(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new TypeError("it is no JSON");
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) throw new TypeError("it holds no conversations");
  return found.conversations.map((one) => ({ ...created(), ...conversationOf(one) }));
}

function conversationOf({ title, at, messages, draft, figures, settings }) {
  if (!Array.isArray(messages) || !messages.every(isMessage)) throw new TypeError("a conversation of it is broken");
  return {
    title: String(title ?? ""),
    at: Math.round(Number(at)) || Date.now(),
    messages,
    draft: String(draft ?? ""),
    figures: figures ?? null,
    settings: settings ?? null,
  };
}

function isMessage({ role, text, files }) {
  const isText = typeof text === "string";
  if (role === "assistant") return isText;
  const hasFiles = Array.isArray(files) && files.every((file) => typeof file.name === "string" && typeof file.text === "string");
  return role === "user" && isText && hasFiles;
}
