"use strict";

/* The timeline of kernels: a row for each thread, a box for each event. */

const TRACK = { width: 1400, height: 26, label: 120 };

/** `threads`: names; `events`: [thread, name, category, begin µs, duration µs]. */
function timelinePicture({ threads, events }) {
  const start = events.reduce((least, event) => Math.min(least, event[3]), Infinity);
  const end = events.reduce((most, event) => Math.max(most, event[3] + event[4]), 0);
  const scale = (TRACK.width - TRACK.label) / (end - start || 1);
  const boxes = events.map(([thread, name, category, begin, duration]) => {
    const box = svg(
      "rect",
      {
        x: TRACK.label + (begin - start) * scale,
        y: thread * TRACK.height + 3,
        width: Math.max(duration * scale, 0.5),
        height: TRACK.height - 6,
      },
      svg("title", {}, `${name} (${category}), ${duration.toFixed(1)} µs`),
    );
    box.style.fill = category === "waiting" ? "var(--line)" : `hsl(${hue(name)} 45% 58%)`;
    return box;
  });
  const height = threads.length * TRACK.height;
  const labels = threads.map((name, at) => svg("text", { x: 2, y: at * TRACK.height + 17 }, clipped(name)));
  return svg(
    "svg",
    { class: "timeline", viewBox: `0 0 ${TRACK.width} ${height + 16}` },
    ...labels,
    ...boxes,
    svg("text", { x: TRACK.label, y: height + 12 }, "0 µs"),
    svg("text", { x: TRACK.width, y: height + 12, "text-anchor": "end" }, `${(end - start).toFixed(1)} µs`),
  );
}

/** A hue that depends on the name only. */
function hue(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 360;
  return sum;
}
