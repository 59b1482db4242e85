// The page: one conversation at a time is shown, each may have a reply under way.

import * as api from "./api.js";
import { asked, button, byId, count, element, plural, size } from "./dom.js";
import * as files from "./files.js";
import { showLedger } from "./ledger.js";
import * as memory from "./memory.js";
import { messageElement, sizeOf } from "./messages.js";
import { bodyOf, questionsOf } from "./prompt.js";
import * as settings from "./settings.js";
import * as spoken from "./spoken.js";
import * as store from "./store.js";
import * as transfer from "./transfer.js";

const SELECTED = "edgekv.selected"; // of sessionStorage: what this tab shows
const WATCH_MS = 1000; // between two looks at the memory while a reply is under way

const shownBefore = sessionStorage.getItem(SELECTED);
const conversations = store.all();
const running = new Map(); // by conversation: what stops its reply, and how far that is
const attached = new Map(); // by conversation: files that were not sent yet
const edited = new Map(); // by conversation: the message that is written anew, and what was typed before
const coverage = new Map(); // by conversation: what is kept of it, as long as this page knows
let current = null;
let last = null; // the element of the current conversation's last message
let server = null; // its properties

// ---- conversations ----

function begin() {
  select(conversations.find((one) => one.messages.length === 0) ?? add(store.created()));
  byId("message").focus();
}

function add(conversation) {
  conversations.unshift(conversation);
  return conversation;
}

function select(conversation) {
  if (current) keep(current); // with what was typed
  current = conversation;
  sessionStorage.setItem(SELECTED, current.id);
  fold();
  show();
}

/** Shows the current conversation anew. */
function show() {
  spoken.hush();
  const message = byId("message");
  message.value = current.draft;
  grow(message);
  showAttached();
  showMessages();
  showList();
  showState();
  memory.showFigures(current.figures);
  memory.showMap(coverageOf(current));
}

const coverageOf = (conversation) => coverage.get(conversation) ?? store.coverage(conversation);

async function set() {
  const conversation = current;
  const found = await settings.changed(conversation.settings);
  if (found === null) return;
  conversation.settings = found;
  keep(conversation);
}

/** Put the conversations of a file beside those that are there. */
async function importFrom(file) {
  let found;
  try {
    found = transfer.imported(await file.text());
  } catch (error) {
    return notify(`${file.name} cannot be imported: ${error.message}.`);
  }
  found.forEach((conversation) => keep(add(conversation)));
  conversations.sort((one, other) => other.at - one.at);
  if (found.length) select(found[0]);
  tell(`${plural(found.length, "conversation")} imported.`);
}

async function rename() {
  const conversation = current;
  const name = byId("new-name");
  name.value = titleOf(conversation);
  const sure = asked(byId("name"));
  name.select();
  if (!(await sure)) return;
  conversation.title = name.value.trim();
  keep(conversation);
  showList();
}

async function remove() {
  const conversation = current;
  if (!(await asked(byId("sure")))) return;
  running.get(conversation)?.controller.abort();
  store.remove(conversation).then((failure) => failure && notify(failure));
  forget(conversation);
}

function forget(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  if (conversation === current) select(conversations[0] ?? add(store.created()));
  else showList();
}

function titleOf({ title, messages }) {
  const first = messages[0];
  return title || first?.text.trim().split("\n")[0].slice(0, 80) || first?.files[0]?.name || "New conversation";
}

/** Whether a conversation is worth an entry: it has a message, a draft or settings. */
const isWorthIt = ({ messages, draft, settings: own }) => messages.length > 0 || Boolean(draft) || own !== null;

/** Stores a conversation. */
async function keep(conversation) {
  if (!conversations.includes(conversation)) return; // deleted meanwhile
  const failure = await (isWorthIt(conversation) ? store.save(conversation) : store.remove(conversation));
  if (failure) notify(failure);
}

// ---- asking ----

function send() {
  const text = byId("message").value.trim();
  const sent = attached.get(current) ?? [];
  if (running.has(current) || (text === "" && sent.length === 0)) return;
  if (text === "") return tell("Write what you want to know of these files.");
  const message = { role: "user", text, files: sent };
  const before = current.messages.slice(0, edited.get(current)?.place);
  const bytes = new Blob([bodyOf([...before, message], current.settings)]).size;
  if (bytes > server?.max_body)
    return notify(
      `With this the conversation has ${size(bytes)}, and the server takes ${size(server.max_body)} at once. ` +
        "Attach less, or begin a new conversation.",
    );
  current.messages = [...before, message];
  edited.delete(current);
  current.draft = "";
  byId("message").value = "";
  grow(byId("message"));
  attached.delete(current);
  showAttached();
  answer(current);
}

/** Begin to write a message anew. Those after it stay until it is sent. */
function edit(message) {
  if (running.has(current)) return;
  const before = edited.get(current) ?? { draft: current.draft, files: attached.get(current) ?? [] };
  edited.set(current, { ...before, place: current.messages.indexOf(message) });
  type(message.text, message.files);
}

/** Leave the message that is edited as it was, and go back to what was typed before. */
function keepAsIs() {
  const { draft, files: before } = edited.get(current);
  edited.delete(current);
  type(draft, before);
}

function type(text, own) {
  const message = byId("message");
  message.value = current.draft = text;
  attached.set(current, own);
  showAttached();
  grow(message);
  message.focus();
}

/** Has the last message answered, or answered again. goesOn: the reply that is there is gone on with */
async function answer(conversation, { goesOn = false } = {}) {
  if (running.has(conversation)) return;
  const last = conversation.messages.at(-1);
  const begun = goesOn ? last.text : "";
  const body = bodyOf(goesOn ? conversation.messages : questionsOf(conversation), conversation.settings);
  if (last.role === "assistant") conversation.messages.pop();
  const said = { role: "assistant", text: begun, thought: goesOn ? last.thought : "", reason: null, failure: null, figures: null };
  const run = { controller: new AbortController(), state: "Waiting for the model", progress: "" };
  conversation.messages.push(said);
  conversation.at = Date.now();
  conversations.sort((one, other) => other.at - one.at);
  running.set(conversation, run);
  keep(conversation);
  showList();
  watchMemory();
  if (conversation === current) {
    notify("");
    spoken.hush();
    showMessages();
    showState();
  }
  let wantsKey = false;
  try {
    for await (const part of api.reply(body, run.controller.signal)) take(conversation, said, run, part);
  } catch (error) {
    if (error.name === "AbortError") said.reason = "cancelled";
    else if (error instanceof api.Failure) ({ message: said.failure, wantsKey } = error);
    else said.failure = `This page cannot read the reply: ${error.message}`;
  } finally {
    running.delete(conversation);
    keep(conversation);
    if (conversation === current) {
      spoken.finish();
      const below = atEnd();
      showLast(false);
      follow(below); // what can be done with the reply is below it
      showState(said.failure ?? (said.reason === "cancelled" ? "Stopped." : "The reply is complete."));
    }
    showList();
  }
  if (wantsKey && (await askForKey())) answer(conversation, { goesOn });
}

function take(conversation, said, run, { read, total, text, thought, reason, usage, edgekv, timings, coverage: kept }) {
  if (total) Object.assign(run, { state: "Reading", progress: `${count(read)} of ${plural(total, "token")}` });
  if (thought) said.thought += thought;
  if (text) said.text += text;
  if (thought || text) Object.assign(run, { state: "Replying", progress: "" });
  if (reason) said.reason = reason;
  if (usage)
    said.figures = {
      n_prompt: usage.prompt_tokens,
      n_known: usage.prompt_tokens_details?.cached_tokens ?? 0,
      n_said: usage.completion_tokens,
      per_second: timings?.predicted_per_second ?? null,
    };
  if (edgekv) {
    const { finish_reason: why, ...figures } = edgekv;
    said.reason = why ?? said.reason;
    conversation.figures = figures;
    if (conversation === current) memory.showFigures(figures);
  }
  if (kept) {
    coverage.set(conversation, kept);
    store.saveCoverage(conversation, kept);
    if (conversation === current) memory.showMap(kept);
  }
  if (conversation !== current) return;
  if (text) spoken.speak(text);
  if (text || thought) drawLast();
  else showState();
}

async function askForKey() {
  const input = byId("api-key");
  input.value = "";
  const sure = await asked(byId("key"));
  if (sure) api.setKey(input.value.trim());
  return sure;
}

// ---- what is shown ----

function showList() {
  byId("title").textContent = titleOf(current);
  document.title = `${titleOf(current)} · edgekv`;
  const sought = byId("search").value.trim().toLowerCase();
  const shown = conversations.filter((conversation) => conversation === current || holds(conversation, sought));
  const drawn = shown.map((conversation) => {
    const mark = conversation === current ? { "aria-current": "true" } : {};
    const state = running.has(conversation) ? [element("span", { class: "faint" }, " replying")] : [];
    return element("li", {}, button([titleOf(conversation)], () => select(conversation), mark), ...state);
  });
  const list = byId("list");
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  list.replaceChildren(...drawn);
  if (focused >= 0) list.querySelector("[aria-current]").focus();
}

/** Whether a conversation has a text in its title, its messages, or the names of its files. */
function holds(conversation, sought) {
  const texts = conversation.messages.flatMap(({ text, files: sent = [] }) => [text, ...sent.map(({ name }) => name)]);
  return [titleOf(conversation), ...texts].some((text) => text.toLowerCase().includes(sought));
}

function showMessages() {
  const views = current.messages.map((message) => messageElement(message, () => edit(message)));
  byId("messages").replaceChildren(...views.map((view) => view.node));
  byId("empty").hidden = views.length > 0;
  views.forEach((view) => view.update(false));
  last = views.at(-1) ?? null;
  showLast(running.has(current));
  follow(true);
}

/** Brings the last message up to date. Only the last reply can be asked for again. */
function showLast(isRunning) {
  const conversation = current;
  last?.update(isRunning, {
    again: () => answer(conversation),
    goOn: () => answer(conversation, { goesOn: true }),
  });
}

let drawing = false;

/** The same at the next frame. */
function drawLast() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!running.has(current)) return;
    const below = atEnd();
    showLast(true);
    follow(below);
    showState();
  });
}

const scroller = () => byId("messages");
const atEnd = () => scroller().scrollHeight - scroller().scrollTop - scroller().clientHeight < 40;

function follow(wanted) {
  if (wanted) scroller().scrollTop = scroller().scrollHeight;
}

/** Which buttons there are, and how far the reply is. */
function showState(outcome = "") {
  const run = running.get(current);
  if (document.activeElement === byId(run ? "send" : "stop")) byId("message").focus(); // which is about to go
  byId("stop").hidden = !run;
  byId("send").hidden = Boolean(run);
  tell(run ? `${run.state} …` : outcome);
  byId("progress").textContent = run?.progress ?? ""; // beside the status, which would say every step aloud
}

function tell(text) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
}

function notify(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = text === "";
}

// ---- files ----

let arriving = Promise.resolve(); // until the files that were given last are attached

function attach(chosen) {
  const conversation = current;
  const texts = files.read(chosen);
  tell("Reading the files …");
  arriving = arriving.then(async () => {
    const { files: read, refused } = await texts;
    attached.set(conversation, [...(attached.get(conversation) ?? []), ...read]);
    if (refused.length) notify(refused.join(" "));
    showAttached();
    showState();
    byId("message").focus();
  });
}

function showAttached() {
  byId("editing").hidden = !edited.has(current);
  const own = attached.get(current) ?? [];
  byId("attached").replaceChildren(
    ...own.map((file) => {
      const drop = () => {
        attached.set(current, own.filter((other) => other !== file));
        showAttached();
        byId("message").focus();
      };
      const remove = button("Remove", drop, { "aria-label": `Remove ${file.name}` });
      return element("li", {}, file.name, " ", sizeOf(file.text), remove);
    }),
  );
}

// ---- the server ----

let watching = false;

async function watchMemory() {
  if (watching) return;
  watching = true;
  for (let busy = true; busy || running.size; ) {
    busy = running.size > 0; // a last look comes after the replies
    await look().catch(() => {}); // the reply itself says what is wrong
    await new Promise((resolve) => setTimeout(resolve, WATCH_MS));
  }
  watching = false;
}

/** Shows the model's name, and what the server holds now. */
async function look() {
  if (server === null) {
    server = await api.properties();
    byId("model").textContent = `The model is ${server.model}.`;
    if (server.conversations) await meet();
  }
  const found = await api.memory();
  memory.showMemory(found);
  showLedger(found.ledger, found.ceiling);
}

/** Shows the conversations that the server keeps, now and whenever this tab is looked at again. */
async function meet() {
  await store.keepThere();
  const before = conversations.find((conversation) => conversation.id === shownBefore);
  if (before) select(before);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") store.keepThere().catch((error) => notify(error.message));
  });
}

// ---- at the beginning ----

function grow(message) {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight}px`;
}

function fold(open = false) {
  byId("unfold").setAttribute("aria-expanded", open);
  document.body.classList.toggle("unfolded", open);
  if (open) byId("begin").focus();
}

byId("begin").addEventListener("click", begin);
byId("search").addEventListener("input", showList);
byId("set").addEventListener("click", set);
byId("export").addEventListener("click", () =>
  transfer.download("conversation.md", "text/markdown", transfer.asMarkdown(titleOf(current), current)),
);
byId("export-all").addEventListener("click", () => {
  transfer.download("conversations.json", "application/json", transfer.asJson(conversations.filter(isWorthIt)));
});
byId("imported").addEventListener("change", ({ target }) => {
  importFrom(target.files[0]);
  target.value = "";
});
byId("keep-as-is").addEventListener("click", keepAsIs);
byId("rename").addEventListener("click", rename);
byId("delete").addEventListener("click", remove);
byId("unfold").addEventListener("click", () => fold(!document.body.classList.contains("unfolded")));
byId("stop").addEventListener("click", () => running.get(current)?.controller.abort());
byId("show-kept").addEventListener("click", () => memory.openKept(coverageOf(current)));
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  arriving.then(send);
});
byId("message").addEventListener("input", ({ target }) => {
  current.draft = target.value;
  grow(target);
});
byId("message").addEventListener("keydown", (event) => {
  const newline = event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || newline) return;
  event.preventDefault();
  arriving.then(send);
});
addEventListener("keydown", ({ key }) => {
  if (key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("unfolded")) fold();
  else running.get(current)?.controller.abort();
});
byId("files").addEventListener("change", ({ target }) => {
  attach([...target.files]);
  target.value = "";
});
files.watch(attach);
addEventListener("pagehide", () => [current, ...running.keys()].forEach(keep));
store.watch((id, changed) => {
  const known = conversations.find((conversation) => conversation.id === id);
  if (known && running.has(known)) return; // this tab knows better
  if (changed === null) return known && forget(known);
  const typed = known === current && { draft: current.draft };
  if (known) Object.assign(known, changed, typed);
  else add(changed);
  conversations.sort((one, other) => other.at - one.at);
  if (known === current) show();
  else showList();
});

select(conversations.find((conversation) => conversation.id === shownBefore) ?? conversations[0] ?? add(store.created()));
byId("ledger").open = matchMedia("(width > 60rem)").matches;
if (!matchMedia("(pointer: coarse)").matches) byId("message").focus(); // a keyboard on the screen would hide the page
look().catch(async (error) => {
  if (error.wantsKey && (await askForKey())) look().catch((again) => notify(again.message));
  else notify(error.message);
});
