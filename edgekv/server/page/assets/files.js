// Texts and documents that are dropped, chosen or pasted as files.

import * as api from "./api.js";

const ENDINGS = /\.(pdf|docx|epub|html?|xhtml)$/i; // of what the server reads as a document

/** The texts of files: { files: [{ name, text }], refused: [sentence] }. Notes on documents are among these. */
export async function read(chosen) {
  const files = [];
  const refused = [];
  for (const file of chosen) {
    if (ENDINGS.test(file.name)) {
      try {
        const { text, notes } = await api.documentText(file);
        files.push({ name: file.name, text });
        refused.push(...notes.map((note) => `${note}.`));
      } catch (error) {
        refused.push(`${file.name} is not attached. ${error.message}`);
      }
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new TypeError();
      if (text.trim() === "") refused.push(`${file.name} is empty.`);
      else files.push({ name: file.name, text });
    } catch (error) {
      refused.push(error instanceof TypeError ? `${file.name} is no text in UTF-8.` : `${file.name} cannot be read.`);
    }
  }
  return { files, refused };
}

/** Calls back with files that are dropped anywhere on the page, or pasted. */
export function watch(received) {
  const root = document.documentElement;
  let depth = 0; // of elements that the pointer is within, as each tells of its own
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const over = (n) => {
    depth = Math.max(0, n);
    root.classList.toggle("dropping", depth > 0);
  };
  addEventListener("dragenter", (event) => hasFiles(event) && over(depth + 1));
  addEventListener("dragleave", (event) => hasFiles(event) && over(depth - 1));
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(0);
    received([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length === 0) return;
    event.preventDefault();
    received(pasted);
  });
}
