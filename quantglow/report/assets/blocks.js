"use strict";

/* Blocks of nodes: paths that their names have in common.  A folded block is drawn as one node. */

class Blocks {
  /** `nodes` have `block`, a list of names from the outermost block to the innermost. */
  constructor(nodes) {
    this.folded = new Set();
    this.members = new Map();
    this.paths = nodes.map((node) => node.block.map((_, at) => node.block.slice(0, at + 1).join("\n")));
    this.paths.forEach((paths, at) => {
      for (const path of paths) {
        if (!this.members.has(path)) this.members.set(path, []);
        this.members.get(path).push(at);
      }
    });
  }

  /** The outermost folded block of a node; undefined if all are unfolded. */
  foldedBlock(node) {
    return this.paths[node].find((path) => this.folded.has(path));
  }

  foldAll() {
    for (const path of this.members.keys()) this.folded.add(path);
  }

  unfoldAll() {
    this.folded.clear();
  }

  toggle(path) {
    if (!this.folded.delete(path)) this.folded.add(path);
  }

  /** Unfold whatever hides a node. */
  reveal(node) {
    for (const path of this.paths[node]) this.folded.delete(path);
  }

  /** Boxes to draw, each a node or a folded block with its nodes, and edges between them. */
  visible(edges, count) {
    const [boxes, boxOf, ofBlock] = [[], new Int32Array(count), new Map()];
    for (let node = 0; node < count; node++) {
      const block = this.foldedBlock(node);
      const known = block === undefined ? undefined : ofBlock.get(block);
      boxOf[node] = known ?? boxes.length;
      if (known !== undefined) boxes[known].nodes.push(node);
      else {
        if (block !== undefined) ofBlock.set(block, boxes.length);
        boxes.push({ block, nodes: [node] });
      }
    }
    const between = new Map();
    for (const [from, to] of edges) {
      const pair = [boxOf[from], boxOf[to]];
      if (pair[0] !== pair[1]) between.set(pair.join(), pair);
    }
    return { boxes, boxOf, edges: [...between.values()] };
  }
}

/** The blocks around a block. */
function outer(path) {
  const parts = path.split("\n");
  return parts.slice(1).map((_, at) => parts.slice(0, at + 1).join("\n"));
}

const shortName = (path) => path.slice(path.lastIndexOf("\n") + 1);

/** Buttons that fold and unfold each block outside of folded ones, indented by depth. */
function blockButtons(blocks, onToggle) {
  const hidden = (path) => outer(path).some((block) => blocks.folded.has(block));
  return [...blocks.members].filter(([path]) => !hidden(path)).map(([path, nodes]) => {
    const depth = path.split("\n").length;
    const folded = blocks.folded.has(path);
    const button = element(
      "button",
      { role: "treeitem", "aria-expanded": String(!folded), "aria-level": String(depth), title: path.replaceAll("\n", "/") },
      `${folded ? "▸" : "▾"} ${shortName(path)} (${nodes.length})`,
    );
    button.style.paddingLeft = `${(depth - 1) * 12 + 4}px`;
    button.addEventListener("click", () => onToggle(path));
    return button;
  });
}
