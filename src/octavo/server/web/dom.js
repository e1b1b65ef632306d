// Small helpers for the document. Text goes in as text nodes only, never as markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`class`, `text`, `on…`, else attributes) and children (nodes or strings). */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** Sets text only when it changes, so that nothing is laid out or read aloud in vain. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const prefersCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
