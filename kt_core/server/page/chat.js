// The conversation: questions, answers as they come, and what is said about them.

import { call, events } from "./api.js";
import { $, el } from "./dom.js";
import { copyButton, drawer } from "./markdown.js";
import { keep, kept } from "./store.js";
import { number, t } from "./texts.js";

const log = $("log");
let running = null; // the AbortController of the answer that comes

export function show() {
  log.replaceChildren();
  for (const message of kept.messages) place(message)();
  buttons();
}

export function ask(text) {
  kept.messages.push({ role: "user", content: text });
  place(kept.messages.at(-1))();
  return answer();
}

export function again() {
  kept.messages.pop();
  log.lastElementChild.remove();
  return answer();
}

export function stop() {
  running?.abort();
}

export function clear() {
  stop();
  kept.messages = [];
  keep();
  show();
}

export const busy = () => running !== null;

function buttons() {
  $("send").hidden = busy();
  $("stop").hidden = !busy();
  $("again").disabled = busy() || kept.messages.at(-1)?.role !== "assistant";
  log.ariaBusy = busy();
}

/** Adds the model's answer to the conversation so far. What goes wrong is said under the answer. */
async function answer() {
  const body = JSON.stringify(request());
  const message = { role: "assistant", content: "", reasoning: "", note: t("begun"), comment: "" };
  kept.messages.push(message);
  const draw = place(message);
  draw();
  const control = (running = new AbortController());
  buttons();
  try {
    const headers = { "Content-Type": "application/json" };
    const options = { method: "POST", signal: control.signal, headers, body };
    await read(await call("v1/chat/completions", options), message, soon(draw));
  } catch (error) {
    message.comment = control.signal.aborted ? t("stopped") : error.message;
    message.failed = !control.signal.aborted;
    if (message.note === t("begun")) message.note = "";
  }
  running = null;
  draw();
  keep();
  buttons();
}

/** The body: parameters that are set, and the conversation without thoughts and answers that never came. */
function request() {
  const { system, ...parameters } = kept.parameters;
  const set = Object.entries(parameters).filter(([, value]) => value !== "");
  const said = kept.messages.filter((message) => message.content).map(({ role, content }) => ({ role, content }));
  return {
    ...Object.fromEntries(set.map(([name, value]) => [name, Number(value)])),
    messages: system ? [{ role: "system", content: system }, ...said] : said,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
  };
}

/** Puts what comes into `message`, and calls `changed` after each event. */
async function read(response, message, changed) {
  let tokens = 0; // events with text: a token each, or a few that make one character
  let first = 0;
  let timings = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const progress = event.prompt_progress;
    if (progress) message.note = t("reading", { done: number(progress.processed), all: number(progress.total) });
    const choice = event.choices[0];
    if (choice?.delta.content || choice?.delta.reasoning_content) {
      message.content += choice.delta.content ?? "";
      message.reasoning += choice.delta.reasoning_content ?? "";
      first ||= performance.now();
      tokens++;
      const seconds = (performance.now() - first) / 1000;
      message.note = t("live", { tokens: number(tokens), speed: number(seconds ? (tokens - 1) / seconds : 0, 1) });
    }
    const names = (choice?.delta.tool_calls ?? []).map((made) => made.function.name).filter(Boolean);
    if (names.length) message.comment = t("calls", { names: names.join(", ") });
    if (choice?.finish_reason === "length") message.comment = t("length");
    timings = event.timings ?? timings;
    if (event.usage && timings) message.note = figures(event.usage, timings);
    changed();
  }
}

function figures(usage, timings) {
  return t("figures", {
    tokens: number(usage.completion_tokens),
    speed: number(timings.predicted_per_second, 1),
    prompt: number(usage.prompt_tokens),
    cached: number(usage.prompt_tokens_details.cached_tokens),
  });
}

/** At most one call for each picture that the screen shows. */
function soon(draw) {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      draw();
    });
  };
}

/** Puts a message into the log; returns the function that draws its present state. */
function place(message) {
  const user = message.role === "user";
  const text = el("div", { className: "text" });
  const note = el("span");
  const comment = el("strong");
  const copy = copyButton(t("copy_answer"), () => message.content);
  const thoughts = user ? null : thinking(message);
  const parts = user ? [text] : [thoughts.root, text, el("footer", {}, note, comment, copy)];
  log.append(el("article", { className: message.role, ariaLabel: t(user ? "you" : "model") }, parts));
  const draw = user ? (content) => (text.textContent = content) : drawer(text);
  let begun = false; // the first picture of a message is followed wherever the reader is
  return () => {
    const follow = !begun || log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    begun = true;
    draw(message.content);
    thoughts?.draw();
    note.textContent = message.note ?? "";
    comment.textContent = message.comment ?? "";
    comment.hidden = !message.comment;
    comment.className = message.failed ? "failed" : "";
    copy.hidden = !message.content;
    if (follow) log.scrollTop = log.scrollHeight;
  };
}

/** The thoughts of a message: open while they come, closed by the answer's first word, then the reader's own choice. */
function thinking(message) {
  const summary = el("summary");
  const text = el("div");
  const root = el("details", { className: "thinking", open: !message.content }, summary, text);
  const draw = drawer(text);
  let answered = Boolean(message.content);
  return {
    root,
    draw() {
      root.hidden = !message.reasoning;
      summary.textContent = t(message.content ? "thought" : "thinking");
      draw(message.reasoning ?? "");
      if (message.content && !answered) {
        root.open = false;
        answered = true;
      }
    },
  };
}
