// Small words for building and changing the document: text goes in as text alone.

export const find = (id) => document.getElementById(id);

// Make an element; `fields` are attributes, `parts` are elements or texts.
export function make(tag, fields = {}, ...parts) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) setAttribute(element, name, value);
  element.append(...parts);
  return element;
}

// Change a text only where it differs, so that an unchanged page costs nothing.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Change an attribute only where it differs; null removes it.
export function setAttribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// Show or hide.
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

// Set how far a bar goes, from 0 to 1; the style sheet reads it as --share.
export function setShare(element, share, name = "--share") {
  const text = Math.min(Math.max(share, 0), 1).toFixed(3);
  if (element.style.getPropertyValue(name) !== text) element.style.setProperty(name, text);
}

// Bring the children of `parent` into the order of `wanted`, moving only those that stand wrong.
export function arrange(parent, wanted) {
  let next = parent.firstChild;
  for (const element of wanted) {
    if (element === next) next = next.nextSibling;
    else parent.insertBefore(element, next);
  }
  while (next) {
    const rest = next.nextSibling;
    next.remove();
    next = rest;
  }
}
