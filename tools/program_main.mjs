// Runs a program of quantglow in node: node program_main.mjs FACTS SAMPLES RUNS < inputs > outputs.
// FACTS is JSON: the WebAssembly file, bytes of the arena, of each input, and of each output.
import { readFileSync, writeSync } from "node:fs";

const facts = JSON.parse(process.argv[2]);
const [samples, runs] = process.argv.slice(3).map(Number);
const { instance } = await WebAssembly.instantiate(readFileSync(facts.file));
const { memory, net_run, __heap_base } = instance.exports;
const given = readFileSync(0);

let end = __heap_base.value;
const room = (nbytes) => {
  const first = Math.ceil(end / 64) * 64;
  end = first + nbytes;
  return first;
};
const arena = room(facts.arena);
const inputs = facts.inputs.map(room), outputs = facts.outputs.map(room);
const pointers = room(4 * (inputs.length + outputs.length));
memory.grow(Math.ceil(end / 65536));
new Uint32Array(memory.buffer, pointers).set([...inputs, ...outputs]);

let at = 0;
for (let sample = 0; sample < samples; sample++) {
  facts.inputs.forEach((nbytes, i) => {
    new Uint8Array(memory.buffer).set(given.subarray(at, at + nbytes), inputs[i]);
    at += nbytes;
  });
  for (let run = 0; run < runs; run++) {
    const result = net_run(arena, pointers, pointers + 4 * inputs.length);
    if (result) process.exit(result);
  }
  facts.outputs.forEach((nbytes, i) => writeSync(1, new Uint8Array(memory.buffer, outputs[i], nbytes)));
}
