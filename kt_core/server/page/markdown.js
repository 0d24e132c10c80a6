// Markdown as models write it, into elements. Text becomes text nodes and nothing else: HTML in it is shown, not parsed;
// links go to http, https and mailto alone; images are links, as nothing may be loaded from elsewhere.
// Every reader looks only at what it takes, or remembers that a mark has no end, so hostile text costs linear time.

import { el } from "./dom.js";
import { t } from "./texts.js";

const DEEPEST = 8; // of lists, quotes and emphasis within each other; further marks are shown as they are
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const LINK = /!?\[((?:[^[\]\\]|\\.)*)\]\(<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`，。；：！？、（）【】《》]{1,2000}/y;

/** A function that draws growing text into `root`; blocks whose text has not changed keep their elements. */
export function drawer(root) {
  let drawn = [];
  return (text) => {
    const blocks = parse(text.split("\n"), 0);
    const sources = blocks.map((block) => block.source);
    let same = 0;
    while (same < drawn.length && drawn[same] === sources[same]) same++;
    while (root.childElementCount > same) root.lastElementChild.remove();
    for (const block of blocks.slice(same)) root.append(block.make());
    drawn = sources;
  };
}

// --- blocks: a reader takes lines from `at` on and says where it ends and how to make its element, or null

function parse(lines, depth) {
  const readers = depth < DEEPEST ? [code, heading, rule, quote, table, list] : [code, heading, rule, table];
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const found = first(readers, lines, at, depth) ?? paragraph(readers, lines, at, depth);
    blocks.push({ source: lines.slice(at, found.end).join("\n"), make: found.make });
    at = found.end;
  }
  return blocks;
}

function first(readers, lines, at, depth) {
  for (const reader of readers) {
    const found = reader(lines, at, depth);
    if (found) return found;
  }
  return null;
}

const nested = (lines, depth) => parse(lines, depth + 1).map((block) => block.make());

function paragraph(readers, lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !first(readers, lines, end, depth)) end++;
  return { end, make: () => el("p", {}, inline(lines.slice(at, end).join("\n").trim())) };
}

function code(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const closes = (line) => {
    const mark = line.trim();
    return mark.length >= open[2].length && mark === open[2][0].repeat(mark.length);
  };
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end++;
  const text = lines.slice(at + 1, end).map((line) => dedent(line, open[1].length)).join("\n");
  return { end: Math.min(end + 1, lines.length), make: () => codeBlock(text, open[3].trim()) };
}

function codeBlock(text, language) {
  const copy = copyButton(t("copy"), () => text);
  return el("figure", { className: "code" }, el("figcaption", {}, language, copy), el("pre", { tabIndex: 0 }, el("code", {}, text)));
}

function heading(lines, at) {
  const found = /^ {0,3}(#{1,6})[ \t]+(.*)$/.exec(lines[at]);
  if (!found) return null;
  const level = Math.min(found[1].length + 2, 6); // under the page's own two
  return { end: at + 1, make: () => el(`h${level}`, {}, inline(found[2].trim())) };
}

function rule(lines, at) {
  const marks = lines[at].replace(/[ \t]/g, "");
  return /^(?:-{3,}|\*{3,}|_{3,})$/.test(marks) ? { end: at + 1, make: () => el("hr") } : null;
}

function quote(lines, at, depth) {
  const mark = /^ {0,3}> ?/;
  if (!mark.test(lines[at])) return null;
  let end = at + 1;
  while (end < lines.length && mark.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(mark, ""));
  return { end, make: () => el("blockquote", {}, nested(inner, depth)) };
}

function table(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length || !lines[at + 1].includes("-")) return null;
  const head = cells(lines[at]);
  const marks = cells(lines[at + 1]);
  if (marks.length !== head.length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const aligned = marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
  const row = (line, tag) =>
    el("tr", {}, head.map((_, n) => el(tag, { className: aligned[n] }, inline(cells(line)[n] ?? ""))));
  const make = () => {
    const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
    const whole = el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, body));
    return el("div", { className: "wide", tabIndex: 0 }, whole); // scrolls by itself on a narrow screen
  };
  return { end, make };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function list(lines, at, depth) {
  const opening = ITEM.exec(lines[at]);
  if (!opening) return null;
  const base = width(opening[1]);
  const kind = opening[2].at(-1); // another mark begins another list
  const items = [];
  let end = at;
  for (let blank = false; end < lines.length; end++) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const inside = width(/^[ \t]*/.exec(line)[0]) - base;
    if (!line.trim()) {
      items.at(-1).lines.push("");
      blank = true;
      continue;
    }
    if (item && inside < 2) {
      if (item[2].at(-1) !== kind || rule(lines, end)) break;
      const text = inside + base + item[2].length + Math.min(width(item[3] ?? " "), 4);
      items.push({ column: text, lines: [item[4] ?? ""] });
    } else if (inside >= 2 || !(blank || first([code, heading, quote, table, rule], lines, end, depth))) {
      items.at(-1).lines.push(dedent(line, items.at(-1).column));
    } else break;
    blank = false;
  }
  const start = parseInt(opening[2], 10);
  const make = () => {
    const made = items.map((item) => el("li", {}, nested(item.lines, depth)));
    return start >= 0 ? el("ol", { start }, made) : el("ul", {}, made);
  };
  return { end, make };
}

/** Columns of white space. */
const width = (space) => space.replaceAll("\t", "    ").length;

/** The line without up to so many columns of leading white space. */
function dedent(line, columns) {
  let at = 0;
  for (let column = 0; column < columns && (line[at] === " " || line[at] === "\t"); at++) column += line[at] === "\t" ? 4 : 1;
  return line.slice(at);
}

// --- inline: a reader says where its span ends and its node, or null; `missing` has marks that do not close any more

const SPANS = { "`": codeSpan, "\\": escaped, "*": emphasis, _: emphasis, "~": emphasis, "[": link, "!": link, h: address };

function inline(text, depth = 0) {
  const missing = new Set();
  const nodes = [];
  let plain = 0; // where text without marks began
  for (let at = 0; at < text.length; ) {
    const span = SPANS[text[at]]?.(text, at, depth, missing);
    if (span) {
      nodes.push(text.slice(plain, at), span.node);
      plain = span.end;
    }
    at = span ? span.end : at + 1;
  }
  nodes.push(text.slice(plain));
  return nodes.filter((node) => node !== "");
}

function escaped(text, at) {
  const next = text[at + 1] ?? "";
  return /[!-/:-@[-`{-~]/.test(next) ? { end: at + 2, node: next } : null;
}

function run(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end++;
  return end - at;
}

function codeSpan(text, at, depth, missing) {
  const length = run(text, at);
  const mark = "`".repeat(length);
  const none = { end: at + length, node: mark };
  if (missing.has(mark)) return none;
  for (let end = text.indexOf(mark, at + length); end >= 0; ) {
    const found = run(text, end);
    if (found === length) {
      const inner = text.slice(at + length, end).replace(/\n/g, " ");
      const trimmed = /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner;
      return { end: end + length, node: el("code", {}, trimmed) };
    }
    end = text.indexOf(mark, end + found);
  }
  missing.add(mark);
  return none;
}

function emphasis(text, at, depth, missing) {
  const mark = text[at];
  const length = run(text, at);
  const none = { end: at + length, node: text.slice(at, at + length) };
  const tags = mark === "~" ? { 2: ["del"] } : { 1: ["em"], 2: ["strong"], 3: ["em", "strong"] };
  const begun = /\S/.test(text[at + length] ?? "") && !(mark === "_" && word(text[at - 1]));
  if (!tags[length] || !begun || depth >= DEEPEST || missing.has(mark + length)) return none;
  for (let end = text.indexOf(mark, at + length); end >= 0; ) {
    const found = run(text, end);
    const ended = /\S/.test(text[end - 1]) && !(mark === "_" && word(text[end + found]));
    if (ended && (found === length || found > Math.max(length, 2))) {
      const inner = inline(text.slice(at + length, end + found - length), depth + 1);
      const node = tags[length].reduceRight((children, tag) => [el(tag, {}, children)], inner)[0];
      return { end: end + found, node };
    }
    end = text.indexOf(mark, end + found);
  }
  missing.add(mark + length);
  return none;
}

const word = (letter) => /[\p{L}\p{N}]/u.test(letter ?? "");

function link(text, at, depth) {
  LINK.lastIndex = at;
  const found = LINK.exec(text);
  const href = found && safe(found[2]);
  if (!href || depth >= DEEPEST) return null;
  const node = anchor(href, inline(found[1] || found[2], depth + 1));
  for (const inner of node.querySelectorAll("a")) inner.replaceWith(...inner.childNodes); // an address as the label
  return { end: at + found[0].length, node };
}

function address(text, at) {
  ADDRESS.lastIndex = at;
  const found = word(text[at - 1]) ? null : ADDRESS.exec(text);
  let shown = (found?.[0] ?? "").replace(/[.,;:!?*_~\]}]+$/, "");
  if (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
  const href = safe(shown);
  return href ? { end: at + shown.length, node: anchor(href, [shown]) } : null;
}

/** An absolute address with a scheme that runs nothing, or null. */
function safe(address) {
  const found = URL.canParse(address) ? new URL(address) : null;
  return found && SCHEMES.has(found.protocol) ? found.href : null;
}

const anchor = (href, children) => el("a", { href, target: "_blank", rel: "noopener noreferrer" }, children);

// --- copying

/** A button that copies what `text()` gives. */
export function copyButton(label, text) {
  const button = el("button", { type: "button", className: "copy" }, label);
  button.onclick = async () => {
    await copy(text());
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = label), 1500);
  };
  return button;
}

/** The clipboard is there only on https and this machine's own addresses; elsewhere the old command still works. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = el("textarea", { value: text, className: "unseen" });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
