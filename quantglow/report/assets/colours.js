"use strict";

/* Colours of nodes by error, time or precision. */

const GOOD_DB = 45;
const BAD_DB = 15;
const MODES = {
  error: { title: "Error", known: (node) => dbOf(node) !== null },
  time: { title: "Time", known: (node) => node.layer?.ms !== undefined && node.layer.ms !== null },
  precision: { title: "Precision", known: (node) => kindOf(node) !== undefined },
};

/** Precisions, the one that a block of several shows first. */
const KINDS = ["float", "int16", "int8", "int4"];

/** The precision of a layer, which may say more ("int4 weights, …"), or of a node without one. */
function kindOf(node) {
  const precision = node.layer?.precision ?? node.precision;
  return KINDS.find((kind) => precision.startsWith(kind));
}

/** SQNR of the outputs by this layer alone, else that of its own results; "inf" has no error. */
function dbOf(node) {
  const db = node.layer?.alone ?? node.layer?.local ?? null;
  return db === "inf" ? GOOD_DB : typeof db === "number" ? db : null;
}

/** Share of the way from --good to --bad. */
function badness(db) {
  return Math.min(1, Math.max(0, (GOOD_DB - db) / (GOOD_DB - BAD_DB)));
}

/** The fill of boxes (lists of nodes) in a mode; null: the stylesheet's. */
function fills(mode, boxes) {
  if (mode === "precision") return boxes.map(precisionFill);
  const values = boxes.map((nodes) => (mode === "error" ? worstBadness(nodes) : totalTime(nodes)));
  const known = values.filter((value) => value !== null);
  const scale = mode === "error" ? 1 : known.reduce((most, value) => Math.max(most, value), 0) || 1;
  return values.map((value) => (value === null ? null : ramp(value / scale)));
}

function worstBadness(nodes) {
  const known = nodes.map(dbOf).filter((db) => db !== null);
  return known.length ? badness(Math.min(...known)) : null;
}

function totalTime(nodes) {
  const known = nodes.filter(MODES.time.known);
  return known.length ? known.reduce((sum, node) => sum + node.layer.ms, 0) : null;
}

function precisionFill(nodes) {
  const own = KINDS.find((kind) => nodes.some((node) => kindOf(node) === kind));
  return own ? `var(--${own})` : null;
}

function ramp(share) {
  return `color-mix(in srgb, var(--bad) ${Math.round(share * 100)}%, var(--good))`;
}

/** The legend of a mode. */
function legend(mode, nodes) {
  if (mode === "precision") {
    return KINDS.filter((kind) => nodes.some((node) => kindOf(node) === kind)).map(swatch);
  }
  const most = Math.max(0, ...nodes.filter(MODES.time.known).map((node) => node.layer.ms));
  const [low, high] =
    mode === "error" ? [`≥ ${GOOD_DB} dB`, `≤ ${BAD_DB} dB`] : ["0 ms", `${figure(most, 3)} ms`];
  return [element("span", {}, low, element("i", { class: "ramp" }), high)];
}

function swatch(kind) {
  const box = element("i");
  box.style.background = `var(--${kind})`;
  return element("span", {}, box, kind);
}
