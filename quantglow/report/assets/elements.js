"use strict";

/* Elements of the page.  Names of nodes are untrusted: every text is set as text, never as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element with attributes and children; strings become text. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const byId = (id) => document.getElementById(id);

/** A short text of a figure; a dash where there is none. */
function figure(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  return Math.abs(value) >= 1000 || (value && Math.abs(value) < 0.01)
    ? value.toPrecision(3)
    : value.toFixed(digits);
}

/** A button that copies a text, also where the clipboard's interface is missing (old file:// pages). */
function copyButton(text) {
  const button = element("button", { class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    button.textContent = copied ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

/** A term and its meaning for a `dl`; nothing for values that are missing. */
function pair(term, value) {
  return value === null || value === undefined || value === ""
    ? []
    : [element("dt", {}, term), element("dd", {}, String(value))];
}
