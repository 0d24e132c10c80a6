// Wires the page's own elements.

import * as chat from "./chat.js";
import { $ } from "./dom.js";
import { look, watch } from "./panel.js";
import { keep, kept } from "./store.js";
import { fill } from "./texts.js";

const question = $("question");
const parameters = $("parameters");

fill();
chat.show();

$("ask").onsubmit = (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (!text || chat.busy()) return;
  question.value = "";
  chat.ask(text);
};
$("stop").onclick = chat.stop;
$("again").onclick = chat.again;
$("clear").onclick = () => {
  chat.clear();
  question.focus();
};
question.onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") chat.stop();
});

for (const field of parameters.querySelectorAll("[name]")) {
  field.value = kept.parameters[field.name] ?? "";
  field.onchange = () => {
    kept.parameters[field.name] = field.value;
    keep();
  };
}
// What the browser refuses must be seen to be put right.
parameters.addEventListener("invalid", () => (parameters.open = true), true);

/** Beside the conversation where there is room, else in its place. */
function open(shown) {
  $("panel").hidden = !shown;
  $("open").ariaExpanded = shown;
  if (shown) look();
}
$("open").onclick = () => open($("panel").hidden);
$("panel").hidden = !matchMedia("(min-width: 900px)").matches;
$("open").ariaExpanded = !$("panel").hidden;
watch();
