// __NAME__: compiled by quantglow for Node and browsers.
//
//   import { load } from "./__NAME__.mjs";
//   const model = await load();
//   const outputs = model.run({ [model.inputs[0].name]: values });

/** Names, shapes and types of inputs and outputs; real = scale * (integer - zeroPoint). */
export const facts = __FACTS__;

const RESULTS = __RESULTS__;
const PAGE_BYTES = 65536;
const POINTER_BYTES = 4;

/** The compiled code, which any number of models share: of a URL, bytes, or a Response. */
export async function compile(source = new URL("./__NAME__.wasm", import.meta.url)) {
  if (source instanceof WebAssembly.Module) return source;
  if (ArrayBuffer.isView(source) || source instanceof ArrayBuffer) return WebAssembly.compile(source);
  if (typeof Response !== "undefined" && source instanceof Response)
    return WebAssembly.compile(await source.arrayBuffer());
  const url = new URL(source, import.meta.url);
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(await readFile(url));
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`cannot load ${url}: ${answer.status} ${answer.statusText}`);
  return WebAssembly.compile(await answer.arrayBuffer());
}

/** A model with memory of its own; `source` is one of `compile`, or its result. */
export async function load(source) {
  return new Model(await WebAssembly.instantiate(await compile(source), {}));
}

/** A model: one run at a time. Load another one, or use workers, for more. */
export class Model {
  #memory;
  #run;
  #arena;
  #inputs;
  #outputs;

  constructor(instance) {
    const { memory, __NAME___run: run, __heap_base: heap } = instance.exports;
    let end = heap.value;
    const room = (bytes) => {
      const first = Math.ceil(end / facts.align) * facts.align;
      end = first + bytes;
      return first;
    };
    this.#arena = room(facts.arenaBytes);
    const inputs = facts.inputs.map(({ bytes }) => room(bytes));
    const outputs = facts.outputs.map(({ bytes }) => room(bytes));
    const tables = [inputs, outputs].map((table) => room(POINTER_BYTES * table.length));
    const missing = end - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE_BYTES));
    [inputs, outputs].forEach((table, i) => new Uint32Array(memory.buffer, tables[i]).set(table));
    this.#memory = memory;
    this.#run = () => run(this.#arena, tables[0], tables[1]);
    this.#inputs = inputs;
    this.#outputs = outputs;
  }

  get inputs() {
    return facts.inputs;
  }

  get outputs() {
    return facts.outputs;
  }

  /** Outputs by name, as new typed arrays; `given`: a typed array for the name of each input. */
  run(given) {
    facts.inputs.forEach((tensor, i) => this.#view(tensor, this.#inputs[i]).set(checked(tensor, given)));
    const result = this.#run();
    if (result !== 0) throw new Error(`__NAME___run: ${RESULTS[result]}`);
    return Object.fromEntries(
      facts.outputs.map((tensor, i) => [tensor.name, this.#view(tensor, this.#outputs[i]).slice()]),
    );
  }

  #view(tensor, address) {
    return new globalThis[tensor.array](this.#memory.buffer, address, tensor.size);
  }
}

function checked(tensor, given) {
  const values = given?.[tensor.name];
  const shown = `input ${JSON.stringify(tensor.name)} is a ${tensor.array} of ${tensor.size} elements`;
  if (!(values instanceof globalThis[tensor.array]))
    throw new TypeError(`${shown}, not ${values?.constructor?.name ?? typeof values}`);
  if (values.length !== tensor.size) throw new RangeError(`${shown}, not of ${values.length}`);
  return values;
}
