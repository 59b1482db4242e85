// The server's endpoints: a reply as it is said, the model, memory. Failures come as a Failure that says what to do.

const KEY = "edgekv.key"; // of sessionStorage
const KEPT_ALIVE = 20_000; // characters: browsers take 64 KiB of requests that outlive a page

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Why there is no reply, in a sentence for the reader. wantsKey: it is the API key that is missing or wrong */
export class Failure extends Error {
  constructor(message, { wantsKey = false } = {}) {
    super(message);
    this.wantsKey = wantsKey;
  }
}

const GONE = "The server does not answer. Is it still running?";
const BROKEN = "The connection ended before the reply did.";

/** The answer to a request that succeeded. */
async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(GONE);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const said = await response.json().then((body) => body.error?.message, () => undefined);
  const wait = response.headers.get("Retry-After");
  const later = /^\d+$/.test(wait ?? "") ? ` Try again in ${wait} s.` : "";
  const meaning = {
    401: "The server wants an API key.",
    403: "The server refuses this page.",
    413: "This is more than the server takes at once.",
    429: "The server has too much to do at the moment.",
    503: "The model is not there at the moment.",
    504: "The server gave up, because the reply took too long.",
  }[response.status] ?? `The server refuses this (status ${response.status}).`;
  return new Failure(`${meaning}${said ? ` It says: ${said}` : ""}${later}`, { wantsKey: response.status === 401 });
}

/** What the server says of itself: model, ceiling, plan. */
export async function properties() {
  return (await request("props")).json();
}

/** What the owners of memory hold, the bytes that were held at most, and the ceiling. */
export async function memory() {
  const [metrics, memory] = await Promise.all([request("metrics"), request("memory")]);
  const peak = Number(/^edgekv_peak_bytes (\S+)/m.exec(await metrics.text())?.[1]);
  const { ceiling_bytes: ceiling, ledger } = await memory.json();
  return { ledger, peak, ceiling };
}

/** The text of a document, as the server reads it: { text, notes }. */
export async function documentText(file) {
  const headers = { "Content-Type": "application/octet-stream" };
  const path = `documents?name=${encodeURIComponent(file.name)}`;
  return (await request(path, { method: "POST", headers, body: file })).json();
}

/** The conversations that the server keeps, by id, as texts of JSON. */
export async function conversations() {
  const found = new Map();
  for (const line of (await (await request("conversations")).text()).split("\n")) {
    try {
      found.set(JSON.parse(line).id, line);
    } catch {
      // empty, or a file that was cut
    }
  }
  return found;
}

/** Has the server keep a conversation. A short one is kept even if the page is closed meanwhile. */
export async function keep(id, text) {
  const headers = { "Content-Type": "application/json" };
  await request(`conversations/${id}`, { method: "PUT", headers, body: text, keepalive: text.length < KEPT_ALIVE });
}

/** Has the server forget a conversation. */
export async function forget(id) {
  await request(`conversations/${id}`, { method: "DELETE" });
}

/** The body of a request for a reply to messages, which are read with a question in mind.
 *  temperature, longest: how replies are drawn, and the most tokens of one; null = as the server does it
 */
export function bodyOf(messages, question, { temperature, longest }) {
  return JSON.stringify({
    messages,
    ...(temperature !== null && { temperature }),
    ...(longest !== null && { max_tokens: longest }),
    stream: true,
    stream_options: { include_usage: true },
    edgekv: { focus: question, coverage: true },
  });
}

/** The reply to a body, piece by piece:
 *  { read, total } while the prompt is read, { text }, { thought }, { reason } at the end, then { usage, edgekv, timings }, and
 *  { coverage }: what is kept of the conversation, as [{ role, runs: [[text, shade]] }].
 */
export async function* reply(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body,
    signal,
  });
  const coverage = [];
  let whole = false;
  for await (const { comment, data } of events(response)) {
    if (comment !== undefined) {
      const [, read, total] = /^reading (\d+) of (\d+)/.exec(comment) ?? [];
      if (total) yield { read: +read, total: +total };
    } else if (data === "[DONE]") {
      whole = true;
    } else {
      const chunk = JSON.parse(data);
      const part = chunk.edgekv?.coverage; // a turn may come in several
      if (part) (coverage[part.turn] ??= { role: part.role, runs: [] }).runs.push(...part.runs);
      else yield* parts(chunk);
    }
  }
  if (coverage.length) yield { coverage };
  if (!whole) throw new Failure(BROKEN);
}

function* parts(chunk) {
  if (chunk.error) throw new Failure(`The reply failed. The server says: ${chunk.error.message}`);
  for (const { delta, finish_reason: reason } of chunk.choices ?? []) {
    if (delta?.reasoning_content) yield { thought: delta.reasoning_content };
    if (delta?.content) yield { text: delta.content };
    if (reason) yield { reason };
  }
  if (chunk.usage || chunk.edgekv) yield { usage: chunk.usage, edgekv: chunk.edgekv, timings: chunk.timings };
}

/** The events of a stream as server-sent events: { data }, and { comment }. */
async function* events(response) {
  let data = [];
  for await (const line of lines(response)) {
    if (line === "" && data.length) {
      yield { data: data.join("\n") };
      data = [];
    } else if (line.startsWith(":")) {
      yield { comment: line.slice(1).trim() };
    } else if (line.startsWith("data:")) {
      data.push(line.slice(5).replace(/^ /, ""));
    }
  }
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const found = (rest + value).split(/\r\n|\n/);
      rest = found.pop();
      yield* found;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(BROKEN);
  } finally {
    reader.cancel().catch(() => {});
  }
}
