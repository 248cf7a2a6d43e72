"use strict";

/* The graph: layout, drawing, colours, folding, search, zoom. */

const FOLD_FROM = 400;
const LABEL = 26;
const clipped = (text) => (text.length > LABEL ? `…${text.slice(1 - LABEL)}` : text);

class GraphView {
  constructor(nodes, edges, onChoose) {
    Object.assign(this, { nodes, edges, onChoose, chosen: -1, matches: [], at: -1 });
    this.blocks = new Blocks(nodes);
    this.modes = Object.keys(MODES).filter((mode) => nodes.some(MODES[mode].known));
    this.mode = this.modes[0];
    this.zoom = new Zoom(byId("canvas"));
    if (nodes.length > FOLD_FROM) this.blocks.foldAll();
    this.connect();
    this.draw();
    this.zoom.start();
  }

  connect() {
    byId("fold").addEventListener("click", () => this.change(() => this.blocks.foldAll()));
    byId("unfold").addEventListener("click", () => this.change(() => this.blocks.unfoldAll()));
    byId("search").addEventListener("input", (event) => this.search(event.target.value));
    byId("search").addEventListener("keydown", (event) => event.key === "Enter" && this.next());
    byId("fold").hidden = byId("unfold").hidden = !this.blocks.members.size;
    byId("colours").append(
      ...this.modes.map((mode) =>
        element("button", { "data-mode": mode, onclick: () => this.colour(mode) }, MODES[mode].title),
      ),
    );
  }

  /** Fold or unfold, and keep the chosen node in sight. */
  change(action) {
    action();
    this.draw();
    if (this.chosen >= 0) this.centre(this.chosen);
    else this.zoom.start();
  }

  draw() {
    const started = performance.now();
    const seen = this.blocks.visible(this.edges, this.nodes.length);
    const placed = layered(seen.boxes.length, seen.edges);
    Object.assign(this, { placed, boxes: seen.boxes, boxOf: seen.boxOf });
    this.shapes = seen.boxes.map((box, at) => this.shape(box, placed.x[at], placed.y[at]));
    const lines = placed.paths.map((points) => svg("path", { class: "edge", d: curve(points) }));
    const tips = svg("path", { class: "tip", d: placed.paths.map(tip).join("") });
    this.zoom.show([...lines, tips, ...this.shapes], bounds(placed));
    byId("blocks").replaceChildren(
      ...blockButtons(this.blocks, (path) => this.change(() => this.blocks.toggle(path))),
    );
    this.colour(this.mode);
    this.mark();
    byId("canvas").dataset.milliseconds = String(Math.round(performance.now() - started));
    byId("canvas").dataset.boxes = String(seen.boxes.length);
  }

  shape(box, x, y) {
    const [first] = box.nodes;
    const node = this.nodes[first];
    const folded = box.block !== undefined;
    const [title, sub] = folded
      ? [shortName(box.block), `${box.nodes.length} nodes`]
      : [node.op, node.name];
    const shape = svg(
      "g",
      { class: folded ? "node block" : "node", transform: `translate(${x} ${y})` },
      svg("title", {}, folded ? box.block.replaceAll("\n", "/") : `${node.op} ${node.name}\n${node.type}`),
      svg("rect", { x: -NODE.width / 2, y: -NODE.height / 2, width: NODE.width, height: NODE.height, rx: 5 }),
      svg("text", { y: -4 }, clipped(title)),
      svg("text", { y: 12, class: "sub" }, clipped(sub)),
    );
    shape.addEventListener("click", () => this.choose(first));
    shape.addEventListener("dblclick", () => this.foldAt(box));
    return shape;
  }

  /** Fold the innermost block of a node, or unfold a folded one. */
  foldAt(box) {
    const path = box.block ?? this.blocks.paths[box.nodes[0]].at(-1);
    if (path !== undefined) this.change(() => this.blocks.toggle(path));
  }

  colour(mode) {
    this.mode = mode;
    if (mode === undefined) return;
    const found = fills(mode, this.boxes.map((box) => box.nodes.map((node) => this.nodes[node])));
    this.shapes.forEach((shape, at) => (shape.querySelector("rect").style.fill = found[at] ?? ""));
    byId("legend").replaceChildren(...legend(mode, this.nodes));
    for (const button of byId("colours").children) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    }
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    const fits = (node) => `${node.name}\n${node.op}`.toLowerCase().includes(wanted);
    this.matches = wanted ? [...this.nodes.keys()].filter((at) => fits(this.nodes[at])) : [];
    this.at = -1;
    byId("found").textContent = wanted ? `${this.matches.length} found; Enter shows the next` : "";
    this.mark();
  }

  /** Show the next match. */
  next() {
    if (!this.matches.length) return;
    this.at = (this.at + 1) % this.matches.length;
    this.show(this.matches[this.at]);
  }

  /** Choose a node, and bring it into sight. */
  show(node) {
    if (this.blocks.foldedBlock(node) !== undefined) {
      this.blocks.reveal(node);
      this.draw();
    }
    this.choose(node);
    this.centre(node);
  }

  centre(node) {
    const box = this.boxOf[node];
    this.zoom.centre(this.placed.x[box], this.placed.y[box]);
  }

  choose(node) {
    this.chosen = node;
    this.mark();
    this.onChoose(node);
  }

  mark() {
    for (const shape of this.shapes) shape.classList.remove("match", "chosen");
    for (const node of this.matches) this.shapes[this.boxOf[node]].classList.add("match");
    if (this.chosen >= 0) this.shapes[this.boxOf[this.chosen]].classList.add("chosen");
  }
}

/** A smooth line through points: quadratic curves between the middles of its pieces. */
function curve(points) {
  const rounded = points.map(([x, y]) => [Math.round(x), Math.round(y)]);
  const [first, ...rest] = rounded;
  let text = `M${first}`;
  rest.slice(0, -1).forEach(([x, y], at) => {
    const [nextX, nextY] = rest[at + 1];
    text += `Q${x},${y} ${(x + nextX) / 2},${(y + nextY) / 2}`;
  });
  return `${text}L${rest.at(-1)}`;
}

/** The tip of an edge: a triangle at its last point. */
function tip(points) {
  const [x, y] = points.at(-1).map(Math.round);
  const up = points.at(-2)[1] > points.at(-1)[1] ? 7 : -7;
  return `M${x},${y}l-4,${up}h8z`;
}

/** Left, top, width and height of the drawing, and the centre of its first box. */
function bounds({ x, y }) {
  let [left, top, right, bottom] = [0, 0, 0, 0];
  x.forEach((centre, at) => {
    left = Math.min(left, centre - NODE.width);
    right = Math.max(right, centre + NODE.width);
    top = Math.min(top, y[at] - NODE.height);
    bottom = Math.max(bottom, y[at] + NODE.height);
  });
  return { left, top, width: right - left, height: bottom - top, first: x[0] ?? 0 };
}
