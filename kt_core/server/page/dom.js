// Elements without markup: text becomes text nodes, so nothing that a model or a server says is ever parsed.

/** An element with properties and children: nodes, texts, lists of them. */
export function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const child of children.flat()) made.append(child); // one by one: a call takes only so many arguments
  return made;
}

export const $ = (id) => document.getElementById(id);
