"use strict";

/* Histograms of tensors, with the range that their integers store. */

const PAGE = 24;
const SIZE = { width: 280, height: 90, axis: 16 };

/** A histogram: {low, high, counts, range}; `range` is [low, high] or null. */
function histogramPicture({ low, high, counts, range }) {
  const [first, last] = range ? [Math.min(low, range[0]), Math.max(high, range[1])] : [low, high];
  const across = (value) => (last > first ? ((value - first) / (last - first)) * SIZE.width : 0);
  const most = Math.log1p(Math.max(...counts));
  const tall = SIZE.height - SIZE.axis;
  const width = Math.max((across(high) - across(low)) / counts.length, 1);
  const bars = counts.map((count, at) => {
    const height = (Math.log1p(count) / most) * tall || 0;
    return svg("rect", { x: across(low) + at * width, y: tall - height, width, height });
  });
  const shade = range
    ? [svg("rect", { class: "range", x: across(range[0]), y: 0, width: across(range[1]) - across(range[0]), height: tall })]
    : [];
  return svg(
    "svg",
    { class: "histogram", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": "histogram" },
    ...shade,
    ...bars,
    svg("line", { x1: 0, x2: SIZE.width, y1: tall, y2: tall }),
    svg("text", { x: 0, y: SIZE.height - 4 }, first.toPrecision(4)),
    svg("text", { x: SIZE.width, y: SIZE.height - 4, "text-anchor": "end" }, last.toPrecision(4)),
  );
}

function rangeText({ range }) {
  return range ? `stored: ${range[0].toPrecision(4)} … ${range[1].toPrecision(4)}` : "float";
}

/** Cards of all histograms, a page at a time, those that fit the search. */
function histogramGrid(section, histograms) {
  const [grid, more] = [section.querySelector(".grid"), section.querySelector(".more")];
  let [shown, wanted] = [PAGE, ""];
  const names = Object.keys(histograms);
  const draw = () => {
    const found = names.filter((name) => name.toLowerCase().includes(wanted));
    grid.replaceChildren(...found.slice(0, shown).map((name) => histogramCard(name, histograms[name])));
    more.hidden = found.length <= shown;
  };
  more.addEventListener("click", () => draw((shown += PAGE)));
  section.querySelector("input").addEventListener("input", (event) => {
    [shown, wanted] = [PAGE, event.target.value.trim().toLowerCase()];
    draw();
  });
  draw();
}

function histogramCard(name, histogram) {
  const hint = element("p", { class: "hint" }, rangeText(histogram));
  return element("div", { class: "card" }, element("h3", {}, name), histogramPicture(histogram), hint);
}
