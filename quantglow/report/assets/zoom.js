"use strict";

/* A drawing that can be moved and zoomed with the mouse, the buttons and the keys. */

const STEP_FACTOR = 1.25;
const SMALLEST_TEXT = 0.35;

class Zoom {
  constructor(pane) {
    this.pane = pane;
    this.layer = svg("g");
    this.view = { x: 0, y: 0, scale: 1 };
    pane.append(svg("svg", {}, this.layer));
    pane.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    pane.addEventListener("pointerdown", (event) => this.onDown(event));
    pane.addEventListener("keydown", (event) => this.onKey(event));
    byId("closer").addEventListener("click", () => this.by(STEP_FACTOR));
    byId("further").addEventListener("click", () => this.by(1 / STEP_FACTOR));
    byId("fit").addEventListener("click", () => this.fit());
  }

  show(children, box) {
    this.box = box;
    this.layer.replaceChildren(...children);
  }

  /** Everything, or the first box and its readers if everything is too small to read. */
  start() {
    this.fit();
    if (this.view.scale >= SMALLEST_TEXT) return;
    this.view.scale = Math.min(1, Math.max(SMALLEST_TEXT, this.pane.clientWidth / this.box.width));
    this.view.x = this.pane.clientWidth / 2 - this.box.first * this.view.scale;
    this.view.y = -this.box.top * this.view.scale;
    this.apply();
  }

  fit() {
    const { left, top, width, height } = this.box;
    const scale = Math.min(this.pane.clientWidth / width, this.pane.clientHeight / height, 1.2) || 1;
    this.view = {
      scale,
      x: this.pane.clientWidth / 2 - (left + width / 2) * scale,
      y: this.pane.clientHeight / 2 - (top + height / 2) * scale,
    };
    this.apply();
  }

  centre(x, y) {
    const scale = Math.max(this.view.scale, 0.8);
    this.view = { scale, x: this.pane.clientWidth / 2 - x * scale, y: this.pane.clientHeight / 2 - y * scale };
    this.apply();
  }

  by(factor, x = this.pane.clientWidth / 2, y = this.pane.clientHeight / 2) {
    const scale = Math.min(4, Math.max(0.005, this.view.scale * factor));
    const ratio = scale / this.view.scale;
    this.view = { scale, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
    this.apply();
  }

  apply() {
    const { x, y, scale } = this.view;
    this.layer.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
  }

  onWheel(event) {
    event.preventDefault();
    const edge = this.pane.getBoundingClientRect();
    this.by(1.0015 ** -event.deltaY, event.clientX - edge.left, event.clientY - edge.top);
  }

  onDown(event) {
    const start = { x: event.clientX - this.view.x, y: event.clientY - this.view.y };
    const move = (moved) => {
      this.view.x = moved.clientX - start.x;
      this.view.y = moved.clientY - start.y;
      this.apply();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", () => removeEventListener("pointermove", move), { once: true });
  }

  onKey(event) {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    if (event.key === "+" || event.key === "-") this.by(event.key === "+" ? STEP_FACTOR : 1 / STEP_FACTOR);
    if (!moves[event.key]) return;
    event.preventDefault();
    this.view.x += moves[event.key][0];
    this.view.y += moves[event.key][1];
    this.apply();
  }
}
