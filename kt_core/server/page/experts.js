// The heat map of expert use: a row of cells for each layer, a cell for each expert.

import { el } from "./dom.js";
import { number, t } from "./texts.js";

/**
 * What /v1/kt/experts says, drawn: the stronger a cell, the more of its layer's asks its expert took, against an even
 * share; experts that are computed elsewhere than on the CPU have the other colour. null where there are none.
 */
export function experts({ layers, asked, elsewhere }) {
  if (!layers.length) return null;
  const count = Math.max(...asked.map((row) => row.length));
  const map = el("canvas", { className: "heat", width: count, height: layers.length });
  const note = el("p", {}, summary(asked, elsewhere));
  map.style.height = `${Math.min(6 * layers.length, 400)}px`;
  map.setAttribute("role", "img");
  map.setAttribute("aria-label", `${t("experts_map")}: ${note.textContent}`);
  draw(map, asked, elsewhere);
  map.addEventListener("pointermove", (event) => {
    const layer = Math.floor((event.offsetY / map.clientHeight) * layers.length);
    const expert = Math.floor((event.offsetX / map.clientWidth) * count);
    const times = asked[layer]?.[expert];
    if (times === undefined) return;
    map.title = t("experts_one", { layer: layers[layer], expert, times: number(times), share: percent(times, sum(asked[layer])) });
  });
  return [map, note];
}

function draw(map, asked, elsewhere) {
  const style = getComputedStyle(document.documentElement);
  const [here, other] = ["--accent", "--other"].map((name) => style.getPropertyValue(name));
  const context = map.getContext("2d");
  asked.forEach((row, y) => {
    const even = sum(row) / row.length;
    const away = new Set(elsewhere[y]);
    row.forEach((times, x) => {
      context.fillStyle = away.has(x) ? other : here;
      // An even share is a third of the way up: most lie below it, and few take more than three times as much.
      context.globalAlpha = even ? Math.min(0.06 + (0.94 * times) / (3 * even), 1) : 0.06;
      context.fillRect(x, y, 1, 1);
    });
  });
}

function summary(asked, elsewhere) {
  const all = asked.reduce((total, row) => total + sum(row), 0);
  const away = elsewhere.reduce((total, ids, layer) => total + ids.reduce((some, id) => some + asked[layer][id], 0), 0);
  const busiest = Math.max(...asked.map((row) => Math.max(...row) / (sum(row) || 1)));
  const text = t("experts_note", { all: number(all), busiest: percent(busiest, 1) });
  return elsewhere.some((ids) => ids.length) ? `${text} ${t("experts_away", { share: percent(away, all) })}` : text;
}

const sum = (row) => row.reduce((total, value) => total + value, 0);
const percent = (part, all) => number((100 * part) / (all || 1), 1);
