"use strict";

/* Layered layout of large graphs: dagre on bands of consecutive ranks, stacked.

   dagre recurses along paths and takes more than linear time: 5,000 nodes in a row overflow its
   stack.  So nodes in a row, without branches, are one tall box for dagre (a chain).  Bands have at
   most BAND chains if ranks allow it, and end where few values cross.  A value that crosses a band
   has a lane in it: two tiny nodes and an edge, so that its line runs between boxes. */

const NODE = { width: 176, height: 40 };
const GAP = { nodesep: 16, edgesep: 10, ranksep: 28 };
const STEP = NODE.height + GAP.ranksep;
const BAND = 16;

/** Centres of nodes, and points of edges [source, target].  Nodes are numbers below `count`, in an
 *  order in which most edges go upwards; an edge that does not is drawn from bottom to top. */
function layered(count, edges) {
  const forward = edges.map(([from, to]) => (from < to ? [from, to] : [to, from]));
  const { chains, chainOf } = chainsOf(count, forward);
  const between = forward.map(([from, to]) => [chainOf[from], chainOf[to]]);
  const outer = between.filter(([from, to]) => from !== to);
  const bands = bandsOf(chains.length, ranksOf(chains.length, outer), outer);
  const known = new Map();
  const placed = stacked(bands, bands.map((band) => bandLayout(band, chains, known)));
  const { x, y } = nodeCentres(count, chains, placed.centres);
  const paths = edges.map(([from], at) => {
    const [[low, high], [first, last]] = [forward[at], between[at]];
    const inner = first === last ? [] : path(first, last, placed.lines).slice(1, -1);
    const points = [[x[low], y[low] + NODE.height / 2], ...inner, [x[high], y[high] - NODE.height / 2]];
    return from === low ? points : points.reverse();
  });
  return { x, y, paths };
}

/** Nodes in a row: each has one reader, which reads nothing else.  A chain comes after those that
 *  it reads. */
function chainsOf(count, forward) {
  const [readers, operands] = [new Int32Array(count), new Int32Array(count)];
  const before = new Int32Array(count).fill(-1);
  for (const [from, to] of forward) {
    readers[from]++;
    operands[to]++;
    before[to] = from;
  }
  const [chains, chainOf] = [[], new Int32Array(count)];
  for (let node = 0; node < count; node++) {
    const above = before[node];
    const follows = operands[node] === 1 && readers[above] === 1;
    chainOf[node] = follows ? chainOf[above] : chains.length;
    if (follows) chains[chainOf[node]].push(node);
    else chains.push([node]);
  }
  return { chains, chainOf };
}

/** Centres of nodes in their chains, whose centres are given. */
function nodeCentres(count, chains, centres) {
  const [x, y] = [new Float64Array(count), new Float64Array(count)];
  chains.forEach((chain, at) => {
    chain.forEach((node, place) => {
      x[node] = centres.x[at];
      y[node] = centres.y[at] + (place - (chain.length - 1) / 2) * STEP;
    });
  });
  return { x, y };
}

/** Length of the longest path to each node. */
function ranksOf(count, forward) {
  const ranks = new Int32Array(count);
  const ordered = [...forward].sort((a, b) => a[0] - b[0]);
  for (const [from, to] of ordered) ranks[to] = Math.max(ranks[to], ranks[from] + 1);
  return ranks;
}

/** Bands, first rank first: their nodes, edges inside, and values that enter, leave or both. */
function bandsOf(count, ranks, forward) {
  const ends = bandEnds(count, ranks, forward);
  const bandAt = new Int32Array(ends[ends.length - 1] + 1);
  for (let rank = 0, band = 0; rank < bandAt.length; rank++) {
    bandAt[rank] = band;
    if (ends[band] === rank) band++;
  }
  const bands = ends.map(() => ({ nodes: [], edges: [], entering: new Map(), leaving: new Map() }));
  for (let node = 0; node < count; node++) bands[bandAt[ranks[node]]].nodes.push(node);
  for (const [from, to] of forward) {
    const [first, last] = [bandAt[ranks[from]], bandAt[ranks[to]]];
    if (first === last) bands[first].edges.push([from, to]);
    for (let band = first; band < last; band++) {
      bands[band].leaving.set(from, null);
      bands[band + 1].entering.set(from, bands[band + 1].entering.get(from) ?? []);
    }
    if (first !== last) bands[last].entering.get(from).push(to);
  }
  return bands;
}

/** The last rank of each band: among the later half of what fits, where fewest values cross. */
function bandEnds(count, ranks, forward) {
  const rankCount = count ? Math.max(...chunkMaxima(ranks)) + 1 : 1;
  const [sizes, crossing] = [new Int32Array(rankCount), crossings(ranks, forward, rankCount)];
  for (const rank of ranks) sizes[rank]++;
  const ends = [];
  for (let start = 0; start < rankCount; start = ends[ends.length - 1] + 1) {
    let [end, filled] = [start, sizes[start]];
    let best = start;
    while (end + 1 < rankCount && filled + sizes[end + 1] <= BAND) {
      filled += sizes[++end];
      if (filled >= BAND / 2 || best === start) best = crossing[end] <= crossing[best] ? end : best;
    }
    ends.push(end === rankCount - 1 ? end : best);
  }
  return ends;
}

/** Number of values that are read behind each rank and made in it or before. */
function crossings(ranks, forward, rankCount) {
  const lastReader = new Map();
  for (const [from, to] of forward) {
    lastReader.set(from, Math.max(lastReader.get(from) ?? 0, ranks[to]));
  }
  const steps = new Int32Array(rankCount + 1);
  for (const [from, last] of lastReader) {
    steps[ranks[from]]++;
    steps[last]--;
  }
  for (let rank = 1; rank <= rankCount; rank++) steps[rank] += steps[rank - 1];
  return steps;
}

/** Maxima of pieces: Math.max takes a limited number of arguments. */
function chunkMaxima(values) {
  const maxima = [];
  for (let at = 0; at < values.length; at += 4096) {
    maxima.push(Math.max(...values.subarray(at, at + 4096)));
  }
  return maxima;
}

/** A band for dagre: boxes and dots by names inside of the band, edges between them, and the name of
 *  each edge outside.  Bands of repeated blocks are equal, and laid out once. */
function described(band, chains) {
  const names = new Map(band.nodes.map((node, at) => [node, `${at}`]));
  for (const value of band.entering.keys()) names.set(value, `v${names.size}`);
  const [entry, exit] = [(value) => `in ${names.get(value)}`, (value) => `out ${names.get(value)}`];
  const found = { heights: [], dots: [], edges: [] };
  const lines = [];
  const add = (from, to, line) => {
    found.edges.push([from, to]);
    lines.push(line);
  };
  for (const node of band.nodes) found.heights.push(chains[node].length * STEP - GAP.ranksep);
  for (const [from, to] of band.edges) add(names.get(from), names.get(to), `${from} ${to}`);
  for (const [value, readers] of band.entering) {
    found.dots.push(entry(value));
    for (const reader of readers) add(entry(value), names.get(reader), `in${value} ${reader}`);
  }
  for (const value of band.leaving.keys()) {
    const enters = band.entering.has(value);
    found.dots.push(exit(value));
    const line = enters ? `in${value} out${value}` : `${value} out${value}`;
    add(enters ? entry(value) : names.get(value), exit(value), line);
  }
  return { key: JSON.stringify(found), found, lines, entry, exit };
}

/** dagre's layout of a band; `known` has those of equal bands. */
function bandLayout(band, chains, known) {
  const part = described(band, chains);
  if (!known.has(part.key)) known.set(part.key, dagreLayout(part.found));
  return { ...part, layout: known.get(part.key) };
}

function dagreLayout({ heights, dots, edges }) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ ...GAP, rankdir: "TB", ranker: "network-simplex" });
  graph.setDefaultEdgeLabel(() => ({}));
  heights.forEach((height, at) => graph.setNode(`${at}`, { width: NODE.width, height }));
  for (const dot of dots) graph.setNode(dot, { width: 2, height: 2 });
  for (const [from, to] of edges) graph.setEdge(from, to);
  dagre.layout(graph);
  return graph;
}

/** Bands below each other, each moved sideways to where its values come from: centres of chains,
 *  and points of lines by their ends. */
function stacked(bands, parts) {
  const [x, y, lines] = [[], [], new Map()];
  let [top, exits] = [0, new Map()];
  parts.forEach((part, at) => {
    const shift = sideways(part, bands[at], exits);
    bands[at].nodes.forEach((node, place) => {
      x[node] = part.layout.node(`${place}`).x + shift;
      y[node] = part.layout.node(`${place}`).y + top;
    });
    addLines(lines, part, shift, top);
    exits = new Map();
    for (const value of bands[at].leaving.keys()) {
      exits.set(value, part.layout.node(part.exit(value)).x + shift);
    }
    top += part.layout.graph().height + GAP.ranksep;
  });
  return { centres: { x, y }, lines };
}

/** The mean distance of the ends of values that enter a band. */
function sideways({ layout, entry }, band, exits) {
  if (!band.entering.size) return -layout.graph().width / 2;
  let sum = 0;
  for (const value of band.entering.keys()) sum += exits.get(value) - layout.node(entry(value)).x;
  return sum / band.entering.size;
}

/** Add the points of a band's lines; lanes of one value are joined. */
function addLines(lines, { found, layout, lines: names }, shift, top) {
  found.edges.forEach(([from, to], at) => {
    const points = layout.edge(from, to).points.map((point) => [point.x + shift, point.y + top]);
    if (lines.has(names[at])) lines.get(names[at]).push(...points);
    else lines.set(names[at], points);
  });
}

/** The points of an edge between chains, through all bands between them. */
function path(from, to, lines) {
  const inside = lines.get(`${from} ${to}`);
  if (inside) return inside;
  const [first, last] = [lines.get(`${from} out${from}`), lines.get(`in${from} ${to}`)];
  const lane = lines.get(`in${from} out${from}`) ?? [];
  return [...first, ...lane.filter(([, y]) => y < last[0][1]), ...last];
}
