// What a conversation sends for a reply: its messages as the API has them, and its settings.

import * as api from "./api.js";
import { NONE } from "./settings.js";

/** The messages without a reply that is there already. */
export const questionsOf = ({ messages }) => (messages.at(-1).role === "assistant" ? messages.slice(0, -1) : messages);

/** The body for messages. What is said about files is the likeliest, as `edgekv ask` has it. */
export function bodyOf(messages, wishes) {
  const { system, temperature, longest, question } = { ...NONE, ...wishes };
  const aboutFiles = messages.some((message) => message.files?.length);
  const first = system ? [{ role: "system", content: sendable(system) }] : [];
  const asked = question || messages.findLast(({ role }) => role === "user").text;
  return api.bodyOf([...first, ...messages.map(asSent)], sendable(asked), {
    temperature: temperature ?? (aboutFiles ? 0 : null),
    longest,
  });
}

/** A message as the API has it. A user's files are parts before what was asked; the server puts line breaks between parts. */
function asSent({ role, text, files: sent = [] }) {
  if (sent.length === 0) return { role, content: sendable(text) };
  const texts = [...sent.map((file) => `[file ${oneLine(file.name)}]\n${file.text}\n`), text];
  return { role, content: texts.map((part) => ({ type: "text", text: sendable(part) })) };
}

/** A name without what is no text of one line. */
const oneLine = (name) => name.replaceAll(/\p{C}|\p{Zl}|\p{Zp}/gu, "\ufffd");

/** A text without what no request may hold: NUL, and halves of characters. */
const sendable = (text) => text.replaceAll("\0", "\ufffd").toWellFormed();
