// The side panel: what the server does now, its memory by part, its counters, and the plan with its reasons.

import { call } from "./api.js";
import { $, el } from "./dom.js";
import { experts } from "./experts.js";
import { bytes, number, t } from "./texts.js";

const EVERY = 2000; // ms between two looks, while somebody can see the page
const panel = $("panel");
const live = el("div");
const fixed = el("div"); // made once for each start of the server, so that what is open stays open
let looking = false;
let timer = 0;
let before = null; // the answers' tokens at the last look, and when that was
let started = 0; // of the server whose plan is shown

export function watch() {
  panel.append(live, fixed);
  document.addEventListener("visibilitychange", look);
  return look();
}

/** Look now, and again later. The server is left alone while nobody sees the page. */
export async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  try {
    const info = await json("v1/kt/info");
    $("model").textContent = `${info.model}: ${info.ready ? t("ready") : t("loading", await stage())}`;
    if (info.ready && !panel.hidden) {
      const counted = figures(await (await call("metrics")).text());
      draw(info, await json("slots"), counted, experts(await json("v1/kt/experts")));
    }
  } catch (error) {
    $("model").textContent = error instanceof TypeError ? t("gone") : error.message; // fetch throws no other
  }
  looking = false;
  timer = setTimeout(look, EVERY);
}

const json = async (path) => (await call(path)).json();

/** How far loading is; /health says it with a status that is none of a success. */
async function stage() {
  const { stage, done, total } = await (await fetch("health")).json();
  return { stage: total ? `${stage} ${number((100 * done) / total)} %` : stage };
}

/** Prometheus' text: name -> the sum over its labels. */
function figures(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(/^([\w:]+)(?:{.*})? ([-+.\deE]+)$/gm)) {
    found[name] = (found[name] ?? 0) + Number(value);
  }
  return found;
}

function draw(info, slots, counted, map) {
  live.replaceChildren(now(slots, counted), memory(info.memory, slots.pages), counters(counted));
  if (map) live.append(el("section", {}, el("h2", {}, t("experts_map")), map));
  if (started === info.started) return;
  started = info.started;
  const stored = Object.entries(info.spec?.bytes_by_part ?? {}).sort((one, other) => other[1] - one[1]);
  fixed.replaceChildren(section("stored", parts(stored, "{part}")), plan(info));
}

function now(slots, counted) {
  const at = performance.now();
  const tokens = counted["vllm:generation_tokens_total"] ?? 0;
  const speed = before ? (tokens - before.tokens) / ((at - before.at) / 1000) : 0;
  before = { at, tokens };
  const rows = [
    row(t("running"), `${slots.running.length} / ${slots.max_running}`, slots.running.length / slots.max_running),
    row(t("waiting"), `${slots.waiting.length} / ${slots.max_queue}`, slots.waiting.length / slots.max_queue),
    row(t("answers_speed"), number(Math.max(speed, 0), 1)),
  ];
  return section("now", [...rows, ...slots.running.map((sequence) => row(sequence.id.slice(-8), phase(sequence)))]);
}

function phase(sequence) {
  return t(`phase_${sequence.state}`, {
    done: number(sequence.computed_tokens),
    all: number(sequence.prompt_tokens),
    tokens: number(sequence.answered_tokens),
    speed: number(sequence.tokens_per_second, 1),
  });
}

function memory(memory, pages) {
  const all = memory.resident + memory.available;
  const held = pages.count - pages.available;
  return section("memory", [
    row(t("resident"), bytes(memory.resident), memory.resident / all),
    row(t("available"), bytes(memory.available), memory.available / all),
    ...Object.entries(memory.planned).map(([device, size]) => row(t("planned", { device }), bytes(size))),
    ...parts(Object.entries(memory.parts), t("planned_part", { part: "{part}" })),
    row(t("pages"), `${number(held)} / ${number(pages.count)}`, held / pages.count),
    row(t("pages_cached"), number(pages.cached), pages.cached / pages.count),
  ]);
}

/** Rows of [part, bytes], each with its share of their sum. */
function parts(sizes, label) {
  const all = sizes.reduce((sum, [, size]) => sum + size, 0);
  return sizes.map(([part, size]) => row(label.replace("{part}", t(`part_${part}`)), bytes(size), size / all));
}

function counters(counted) {
  const count = (name) => counted[`vllm:${name}_total`] ?? 0;
  const share = count("prefix_cache_hits") / (count("prefix_cache_queries") || 1);
  return section("counters", [
    row(t("ended"), number(count("request_success"))),
    row(t("prompt_tokens"), number(count("prompt_tokens"))),
    row(t("answer_tokens"), number(count("generation_tokens"))),
    row(t("cache_share"), `${number(100 * share)} %`, share),
    row(t("preempted"), number(count("num_preemptions"))),
  ]);
}

/** Decisions open to their reasons, which the server words in its own language. */
function plan(info) {
  const speed = info.predicted.decode_tokens_per_second;
  const made = section("plan", [
    row(t("kernels"), info.kernels.chosen),
    row(t("threads"), number(info.kernels.threads)),
    row(t("context"), number(info.engine.context)),
    ...(speed ? [row(t("predicted"), number(speed, 1))] : []),
  ]);
  for (const { name, value, reason } of info.decisions) {
    made.append(el("details", {}, el("summary", {}, `${name}: ${shown(value)}`), el("p", {}, reason)));
  }
  return made;
}

const shown = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));

function section(title, rows) {
  return el("section", {}, el("h2", {}, t(title)), el("dl", {}, rows));
}

function row(name, value, share = null) {
  const made = el("div", {}, el("dt", {}, name), el("dd", {}, value));
  if (share === null) return made;
  const bar = el("div", { className: "bar", ariaHidden: true }, el("div"));
  bar.firstChild.style.width = `${100 * Math.min(Math.max(share || 0, 0), 1)}%`;
  made.lastChild.append(bar);
  return made;
}
