// Perfetto's own trace processor, as its web page has it: loads a trace, answers queries, a JSON document a line.
// node perfetto_reader.mjs FOLDER TRACE QUERY...; FOLDER holds engine_bundle.js and trace_processor*.wasm.
// It is a worker that speaks TraceProcessorRpc (protos/perfetto/trace_processor/trace_processor.proto) over a port.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const APPEND_TRACE = 1, END_TRACE = 2, QUERY = 3;
const [folder, trace, ...queries] = process.argv.slice(2);
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const read = name => fs.readFileSync(path.join(folder, path.basename(name)));

// The few pieces of the protobuf form that are needed.
function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}
const number = (id, value) => Buffer.concat([varint(id << 3), varint(value)]);
const block = (id, bytes) => Buffer.concat([varint((id << 3) | 2), varint(bytes.length), bytes]);

function* varints(bytes) {
  let value = 0n, shift = 0n;
  for (const byte of bytes) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte < 128) { yield value; value = 0n; shift = 0n; }
  }
}

function* fields(bytes) {
  let at = 0;
  const next = () => {
    const begin = at;
    while (bytes[at++] >= 128);
    return [...varints(bytes.subarray(begin, at))][0];
  };
  const take = length => bytes.subarray(at, at += length);
  while (at < bytes.length) {
    const key = Number(next());
    const kind = key & 7;
    yield [key >> 3, kind === 0 ? next() : take(kind === 1 ? 8 : kind === 5 ? 4 : Number(next()))];
  }
}

// QueryResult: names of columns, an error, batches of cells whose kinds say where each value is.
function table(results) {
  const names = [], rows = [];
  for (const [id, value] of results.flatMap(result => [...fields(result)])) {
    if (id === 1) names.push(value.toString());
    if (id === 2) return { error: value.toString() };
    if (id !== 3) continue;
    const parts = new Map(fields(value));
    const empty = Buffer.alloc(0), part = key => parts.get(key) ?? empty;
    const doubles = part(3), strings = part(5).toString().split('\0');
    const whole = [...varints(part(2))].map(each => Number(BigInt.asIntN(64, each)));
    let real = 0;
    const values = [...varints(part(1))].map(kind => {
      if (kind === 2n) return whole.shift();
      if (kind === 3n) return doubles.readDoubleLE(8 * real++);
      return kind === 4n ? strings.shift() : null;
    });
    while (values.length) rows.push(Object.fromEntries(names.map(name => [name, values.shift()])));
  }
  return { rows };
}

// What a worker of a browser finds around it.
const replies = [];
const port = {
  postMessage: message => replies.push(...[...fields(Buffer.from(message))].filter(([id]) => id === 1).map(([, one]) => one)),
};
const around = {
  console: { log() {}, warn() {}, info() {}, error: (...words) => process.stderr.write(`${words.join(' ')}\n`) },
  WebAssembly, TextDecoder, TextEncoder, performance, setTimeout, clearTimeout, setInterval, clearInterval, URL, Response,
  queueMicrotask, Uint8Array, TypeError, Error, crypto: globalThis.crypto,
  WorkerGlobalScope: class {}, MessagePort: Object, importScripts() {}, addEventListener() {}, removeEventListener() {},
  postMessage() {}, navigator: { userAgent: '' }, location: { href: 'http://here/engine_bundle.js', origin: 'http://here' },
  fetch: async url => new Response(read(String(url)), { headers: { 'content-type': 'application/wasm' } }),
  XMLHttpRequest: class {
    open(_method, url) { this.url = url; }
    send() { this.status = 200; this.response = new Uint8Array(read(this.url)).buffer; }
  },
};
around.self = around.globalThis = around;

// It tells nobody when it is ready: that is once it has put the function for its replies into the program's table.
let ready = false;
const put = WebAssembly.Table.prototype.set;
WebAssembly.Table.prototype.set = function (...values) { ready = true; return put.apply(this, values); };
vm.runInNewContext(read('engine_bundle.js').toString(), around);
around.onmessage({ data: port });

async function ask(method, ...parts) {
  const before = replies.length;
  const message = block(1, Buffer.concat([number(1, ask.count++), number(2, method), ...parts]));
  port.onmessage({ data: new Uint8Array(message) });
  while (replies.length === before) await pause(10);
  return replies.slice(before).flatMap(reply => [...fields(reply)]);
}
ask.count = 0;

while (!ready) await pause(10);
const bytes = fs.readFileSync(trace);
for (let at = 0; at < bytes.length; at += 1 << 24) await ask(APPEND_TRACE, block(101, bytes.subarray(at, at + (1 << 24))));
await ask(END_TRACE);
for (const query of queries) {
  const answer = await ask(QUERY, block(103, block(1, Buffer.from(query))));
  console.log(JSON.stringify(table(answer.filter(([id]) => id === 203).map(([, result]) => result))));
}
process.exit(0);
