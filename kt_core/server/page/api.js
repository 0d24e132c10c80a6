// Requests to the server that this page came from, with the key once somebody gave it.

import { $ } from "./dom.js";
import { keep, kept } from "./store.js";
import { t } from "./texts.js";

let asking = null; // the one wait for a key, whoever needs it

/** A response that went well. Asks for the key where one is needed; throws Error with the server's words otherwise. */
export async function call(path, options = {}) {
  for (;;) {
    const used = kept.key;
    const headers = { ...options.headers, ...(used ? { Authorization: `Bearer ${used}` } : {}) };
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status !== 401) throw new Error((await words(response)) || `HTTP ${response.status}`);
    if (used === kept.key) await (asking ??= askKey(used));
    options.signal?.throwIfAborted();
  }
}

async function words(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "";
  }
}

/** Resolves when there is another key than the refused one. */
function askKey(refused) {
  const form = $("key");
  $("key-note").textContent = refused ? t("key_wrong") : "";
  form.hidden = false;
  $("key-field").focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      // A header takes no other letters, and no key has them.
      kept.key = $("key-field").value.replace(/[^\x21-\x7e]/g, "");
      $("key-field").value = "";
      form.hidden = true;
      asking = null;
      keep();
      resolve();
    };
  });
}

/** The objects of a stream of events. Throws Error where it ends before its [DONE]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let whole = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done && whole) return;
    if (done) throw new Error(t("broken"));
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((line) => line.startsWith("data: "))) {
      if (line === "data: [DONE]") whole = true;
      else yield JSON.parse(line.slice(6));
    }
  }
}
