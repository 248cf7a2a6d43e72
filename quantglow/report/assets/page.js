"use strict";

/* The page: its data, sections, and what is chosen. */

function main() {
  const data = JSON.parse(byId("data").textContent);
  byId("verdict").textContent = data.verdict ?? "";
  const layers = new Map((data.layers ?? []).map((layer) => [layer.name, layer]));
  const nodes = (data.graph?.nodes ?? []).map((node) => ({ ...node, layer: layers.get(node.name) }));
  const places = new Map(nodes.map((node, at) => [node.name, at]));
  let view = null;
  const show = (name) => {
    if (view === null || !places.has(name)) return;
    view.show(places.get(name));
    byId("graph").scrollIntoView();
  };
  if (nodes.length) {
    reveal("graph");
    byId("details").textContent = "Click a node to see its figures; double-click folds or unfolds its block.";
    view = new GraphView(nodes, data.graph.edges, (at) => details(nodes[at], data.columns ?? [], data.histograms ?? {}));
  }
  if (data.advice?.length) advice(reveal("advice"), data.advice, show);
  if (layers.size) layerTable(reveal("layers"), data.columns, data.layers, show);
  if (data.outputs?.rows.length) outputTable(reveal("outputs"), data.outputs);
  if (Object.keys(data.histograms ?? {}).length) histogramGrid(reveal("histograms"), data.histograms);
  else if (data.missing) reveal("histograms").replaceChildren(element("h2", {}, "Histograms"), element("p", {}, data.missing));
  if (data.timeline?.events.length) reveal("timeline").querySelector(".scroll").append(timelinePicture(data.timeline));
  if (data.facts?.length) facts(reveal("facts"), data.facts, data.notes ?? []);
  document.body.dataset.ready = String(Math.round(performance.now()));
}

/** Show a section, and link to it. */
function reveal(id) {
  const section = byId(id);
  section.hidden = false;
  document
    .querySelector("nav")
    .append(element("a", { href: `#${id}` }, section.querySelector("h2").textContent));
  return section;
}

function details(node, columns, histograms) {
  const layer = node.layer ?? {};
  const histogram = histograms[node.name];
  const pane = byId("details");
  pane.replaceChildren(
    element("h3", {}, node.name),
    element(
      "dl",
      {},
      ...pair("op", node.op),
      ...pair("type", node.type),
      ...pair("precision", layer.precision ?? node.precision),
      ...columns.filter((column) => column.number && layer[column.key] !== undefined && layer[column.key] !== null)
        .flatMap((column) => pair(column.title, figure(layer[column.key], column.digits))),
      ...pair("why float", layer.reason),
    ),
  );
  if (histogram) pane.append(histogramPicture(histogram), element("p", { class: "hint" }, rangeText(histogram)));
}

function advice(section, entries, show) {
  section.querySelector(".cards").append(
    ...entries.map((entry) =>
      element(
        "div",
        { class: "card" },
        element("h3", {}, entry.layer),
        element("p", {}, entry.finding),
        ...entry.remedies.flatMap(remedy),
        element("button", { class: "where", onclick: () => show(entry.layer) }, "Show in the graph"),
      ),
    ),
  );
}

function remedy({ text, flag }) {
  return [
    element("p", { class: "hint" }, text),
    element("div", { class: "flag" }, element("code", {}, flag), copyButton(flag)),
  ];
}

/** The layers, without columns that no layer has. */
function layerTable(section, every, layers, show) {
  const has = (column) => layers.some((layer) => ![undefined, null, ""].includes(layer[column.key]));
  const columns = every.filter(has);
  const texts = columns.filter((column) => column.help);
  section.append(element("details", {}, element("summary", {}, "What the columns mean"),
    element("dl", {}, ...texts.flatMap((column) => pair(column.title, column.help)))));
  const rows = layers.map((layer) => columns.map((column) => layer[column.key] ?? null));
  section
    .querySelector(".scroll")
    .append(sortableTable(columns, rows, (at) => show(layers[at].name)));
}

function outputTable(section, { columns, rows }) {
  section.querySelector(".scroll").append(sortableTable(columns, rows));
}

function facts(section, entries, notes) {
  section.querySelector(".scroll").append(element("dl", {}, ...entries.flatMap(([term, value]) => pair(term, value))));
  section.querySelector(".notes").append(...notes.map((note) => element("li", {}, note)));
}

main();
