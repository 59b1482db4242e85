// Settings of a conversation: its system message, how replies are drawn, how long they may be, what to read with.

import { asked, byId } from "./dom.js";

/** What a conversation without settings has: everything as the server does it. */
export const NONE = { system: "", temperature: null, longest: null, question: "" };

/** Have the user change settings; resolves to the new ones, or null. */
export async function changed(settings) {
  const { system, temperature, longest, question } = { ...NONE, ...settings };
  byId("system").value = system;
  byId("temperature").value = temperature ?? "";
  byId("longest").value = longest ?? "";
  byId("question").value = question;
  if (!(await asked(byId("settings")))) return null;
  return {
    system: byId("system").value.trim(),
    temperature: number("temperature"),
    longest: number("longest"),
    question: byId("question").value.trim(),
  };
}

const number = (id) => (byId(id).value === "" ? null : byId(id).valueAsNumber);
