#!/usr/bin/env node
// The same check as verify.py, written a second time: for node, without any package.
//
//     node verify.mjs BUNDLE.zip [KEY_FINGERPRINT]
//
// 0 verified, 1 mismatch or flagged (a changed context in a run that asked for none), 2 it holds in itself but no fingerprint was given. Formats: docs/spec.md.

import { createHash, createPublicKey, verify as verifySignature } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { inflateRawSync } from "node:zlib";

class Broken extends Error {}

const expect = (holds, what) => {
  if (!holds) throw new Broken(what);
};
const sha = (...parts) => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest();
};
const shaHex = (...parts) => sha(...parts).toString("hex");
const unhex = (text) => {
  expect(typeof text === "string" && /^([0-9a-f]{2})*$/.test(text), "hex in another spelling");
  return Buffer.from(text, "hex");
};

// --- canonical JSON: JSON.stringify spells numbers and strings as RFC 8785 does

const decode = (data) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
const parse = (data) => {
  try {
    return JSON.parse(decode(data));
  } catch (error) {
    throw new Broken(`not JSON: ${error.message}`);
  }
};
const canonical = (value) => {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort(); // by UTF-16 code units, as RFC 8785 has it
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
};
const jcs = (value) => Buffer.from(canonical(value), "utf-8");

// UTF-8 in which a lone surrogate keeps its own three bytes.
const utf8 = (text) =>
  Buffer.concat(
    Array.from(text, (char) => {
      const code = char.codePointAt(0);
      const isLone = code >= 0xd800 && code <= 0xdfff;
      return isLone
        ? Buffer.from([0xe0 | (code >> 12), 0x80 | ((code >> 6) & 63), 0x80 | (code & 63)])
        : Buffer.from(char, "utf-8");
    }),
  );
const digestRef = (data) => ({ byteLength: data.length, digest: shaHex(data) });
const isRef = (value) =>
  value !== null &&
  typeof value === "object" &&
  ["byteLength,digest", "byteLength,digest,encRef"].includes(Object.keys(value).sort().join());

const isSigned = (rawPublic, signature, message) => {
  const spki = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), rawPublic]);
  const key = createPublicKey({ key: spki, format: "der", type: "spki" });
  return signature.length === 64 && verifySignature(null, message, key, signature);
};

// --- the parts

const lines = (data, name) => {
  expect(data.length === 0 || data[data.length - 1] === 10, `${name}: torn`);
  const found = [];
  for (let start = 0; start < data.length; ) {
    const end = data.indexOf(10, start);
    found.push(data.subarray(start, end));
    start = end + 1;
  }
  return found;
};

const checkMutation = (payload, index) => {
  const { address, flagged, kind, before_digest, after_digest, step_index } = parse(payload);
  const covered = jcs({ kind, before_digest, after_digest, step_index });
  const known = shaHex("bernstein.mutation.v1\n", covered);
  expect(address === known && step_index === index, `row ${index}: address`);
  return flagged === true;
};

const checkJournal = (data) => {
  let head = "0".repeat(64);
  const [flagged, others] = [[], []];
  const rows = lines(data, "journal");
  rows.forEach((line, index) => {
    const start = line.indexOf('"payload":') + 10;
    const end = line.lastIndexOf(',"payload_hash":"');
    const payload = line.subarray(start, end);
    expect(start > 10 && payload[0] === 123, `row ${index}: no payload`);
    // Inside the payload the chain vouches for bytes, so it is not read.
    const row = parse(Buffer.concat([line.subarray(0, start), Buffer.from("null"), line.subarray(end)]));
    const { event, lane } = row;
    expect(/^[a-z][a-z0-9_.]{0,63}$/.test(event), `row ${index}: event`);
    expect(/^[A-Za-z0-9._/-]{0,128}$/.test(lane), `row ${index}: lane`);
    const hashed = shaHex(`bernstein.payload.v1\n${event}\n${lane}\n`, payload);
    const chained = shaHex(`bernstein.event.v1\n${head}\n${event}\n${hashed}\n${index}`);
    expect(row.index === index && row.prev_hash === head, `row ${index}: order`);
    expect(row.payload_hash === hashed, `row ${index}: payload`);
    expect(row.event_hash === chained, `row ${index}: event hash`);
    const spelled = Buffer.concat([
      Buffer.from(`{"index":${index},"event":"${event}","lane":"${lane}","payload":`),
      payload,
      Buffer.from(
        `,"payload_hash":"${hashed}","prev_hash":"${head}","event_hash":"${chained}",` +
          `"ts":"${row.ts}","elapsed_s":${row.elapsed_s.toFixed(6)}}`,
      ),
    ]);
    expect(spelled.equals(line), `row ${index}: spelling`);
    if (event === "provider_state_mutation") {
      (checkMutation(payload, index) ? flagged : others).push(index);
    }
    head = chained;
  });
  return [head, rows.length, flagged, others];
};

// The digest of a text that may stand as what it adds to one of the few before it, newest first.
const digestOfText = (stored, seq, kept, keep, blobs) => {
  if (isRef(stored)) {
    if (blobs.has(stored.digest)) kept.unshift([seq, wtf8(blobs.get(stored.digest))]);
    kept.splice(keep);
    return stored;
  }
  let text = stored;
  if (typeof stored === "object") {
    const found = kept.find(([number]) => number === stored.seq);
    expect(found !== undefined, "a text adds to one that is not there");
    const chars = Array.from(found[1]); // positions count characters, not code units
    const tail = chars.slice(chars.length - stored.tail).join("");
    text = chars.slice(0, stored.head).join("") + stored.text + tail;
  }
  if (Array.from(text).length > 1024) kept.unshift([seq, text]);
  kept.splice(keep);
  return digestRef(utf8(text));
};

const digestForm = (name, data, blobs) => {
  const hash = createHash("sha256");
  const groups = new Map();
  const rows = lines(data, name);
  const keptOf = (group) => {
    if (!groups.has(group)) groups.set(group, []);
    return groups.get(group);
  };
  for (const line of rows) {
    const row = parse(line);
    expect(jcs(row).equals(line), `${name}: not in canonical spelling`);
    if (name === "llm_calls") {
      row.prompt = digestOfText(row.prompt, row.seq, keptOf(row.lane), 1, blobs);
      if (!isRef(row.outcome)) row.outcome = digestRef(jcs(row.outcome));
    } else if (name === "exchanges") {
      const kept = keptOf(JSON.stringify([row.method, row.origin, row.path]));
      row.request = digestOfText(row.request, row.seq, kept, 8, blobs);
      if (!isRef(row.response)) row.response = digestRef(utf8(row.response));
    } else if (name === "fixtures") {
      for (const member of ["request", "response"]) {
        if (member in row && !isRef(row[member])) row[member] = digestRef(jcs(row[member]));
      }
    }
    hash.update(jcs(row)).update("\n");
  }
  return { digest_form_sha256: hash.digest("hex"), rows: rows.length };
};

// The text of bytes in which a lone surrogate has its own three bytes.
const wtf8 = (data) => {
  let text = "";
  for (let at = 0; at < data.length; ) {
    const lead = data[at];
    const size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead === 0xed && data[at + 1] >= 0xa0) {
      text += String.fromCharCode(0xd000 | ((data[at + 1] & 63) << 6) | (data[at + 2] & 63));
    } else {
      text += decode(data.subarray(at, at + size));
    }
    at += size;
  }
  return text;
};

const checkInclusion = (leaf, index, size, path, root) => {
  expect(Number.isInteger(index) && index >= 0 && index < size, "no such entry in the log");
  let [number, end, found] = [index, size - 1, leaf];
  for (const part of path) {
    expect(end > 0, "the log's proof is too long");
    if (number % 2 === 1 || number === end) {
      found = sha(Buffer.from([1]), part, found);
      while (number % 2 === 0 && number > 0) [number, end] = [number / 2, Math.floor(end / 2)];
    } else {
      found = sha(Buffer.from([1]), found, part);
    }
    [number, end] = [Math.floor(number / 2), Math.floor(end / 2)];
  }
  expect(end === 0 && found.equals(root), "the entry is not under the checkpoint's root");
};

const checkLog = (proof, sealData, runId, rawPublic) => {
  const { entry_hash: entryHash, sig, ...entry } = proof.entry;
  expect(shaHex("bernstein.spine.v1\n", jcs(entry)) === entryHash, "the log entry's hash");
  const message = Buffer.from(`bernstein.spine.v1\n${entryHash}`);
  expect(isSigned(rawPublic, unhex(sig), message), "the log entry's signature");
  expect(["run", "received"].includes(entry.kind), "the log entry is not that of a run");
  expect(entry.run_id === runId && entry.seal_sha256 === shaHex(sealData), "another log entry");
  const cut = proof.checkpoint.indexOf("\n\n");
  const body = proof.checkpoint.slice(0, cut);
  const [origin, size, root, ...more] = body.split("\n");
  expect(more.length === 0 && /^(0|[1-9][0-9]*)$/.test(size), "this is no checkpoint");
  expect(origin === `bernstein/spine/${shaHex(rawPublic)}`, "a checkpoint of another log");
  const [dash, name, encoded, ...rest] = proof.checkpoint.slice(cut + 2).trimEnd().split(" ");
  const raw = Buffer.from(encoded ?? "", "base64");
  expect(raw.toString("base64") === encoded && rest.length === 0, "base64 in another spelling");
  const keyHash = sha(name, "\n", Buffer.from([1]), rawPublic).subarray(0, 4);
  const isSigner = dash === "\u2014" && name === origin && raw.subarray(0, 4).equals(keyHash);
  expect(isSigner, "the checkpoint's signer");
  expect(isSigned(rawPublic, raw.subarray(4), Buffer.from(`${body}\n`)), "the checkpoint's signature");
  const leaf = sha(Buffer.from([0]), unhex(entryHash));
  const path = proof.inclusion.map(unhex);
  checkInclusion(leaf, entry.index, Number(size), path, Buffer.from(root, "base64"));
};

// --- the zip file, by its central directory

const unzip = (data) => {
  const end = data.lastIndexOf(Buffer.from("PK\x05\x06", "latin1"));
  expect(end >= 0, "this is not a bundle");
  const files = new Map();
  let at = data.readUInt32LE(end + 16);
  for (let left = data.readUInt16LE(end + 10); left > 0; left -= 1) {
    expect(data.readUInt32LE(at) === 0x02014b50, "this is not a bundle");
    const [method, crc] = [data.readUInt16LE(at + 10), data.readUInt32LE(at + 16)];
    const [packed, size] = [data.readUInt32LE(at + 20), data.readUInt32LE(at + 24)];
    const [nameSize, extra, note] = [28, 30, 32].map((place) => data.readUInt16LE(at + place));
    const local = data.readUInt32LE(at + 42);
    const name = data.subarray(at + 46, at + 46 + nameSize).toString("utf-8");
    const start = local + 30 + data.readUInt16LE(local + 26) + data.readUInt16LE(local + 28);
    const raw = data.subarray(start, start + packed);
    expect(method === 0 || method === 8, `${name}: another way of packing`);
    const content = method === 8 ? inflateRawSync(raw, { maxOutputLength: size + 1 }) : raw;
    expect(content.length === size && !files.has(name), `${name}: another size, or twice`);
    files.set(name, content);
    void crc; // every byte is under a hash that is checked below
    at += 46 + nameSize + extra + note;
  }
  return files;
};

const checkBundle = (path) => {
  const members = unzip(readFileSync(path));
  const runId = [...members.keys()][0].split("/")[0];
  const files = new Map();
  const blobs = new Map();
  for (const [name, data] of members) {
    expect(name.startsWith(`${runId}/`), `${name}: of another run`);
    const own = name.slice(runId.length + 1);
    files.set(own, data);
    if (own.startsWith("blobs/")) {
      expect(shaHex(data) === own.slice(6), `${name}: other bytes`);
      blobs.set(own.slice(6), data);
    }
  }
  for (const name of ["journal.jsonl", "seal.json", "proof.json", "run.json"]) {
    expect(files.has(name), `${name} is not there`);
  }
  const [head, rows, flagged, others] = checkJournal(files.get("journal.jsonl"));
  const [seal, proof] = [parse(files.get("seal.json")), parse(files.get("proof.json"))];
  const isSpelled = (value, name) => `${canonical(value)}\n` === decode(files.get(name));
  expect(isSpelled(seal, "seal.json") && isSpelled(proof, "proof.json"), "spelling");
  expect(seal.run_id === runId, "the seal is that of another run");
  expect(seal.count === rows, `sealed with ${seal.count} rows, there are ${rows}`);
  expect(seal.head === head, "another chain was sealed");
  expect(seal.journal_sha256 === shaHex(files.get("journal.jsonl")), "times in the journal");
  expect(seal.run_sha256 === shaHex(files.get("run.json")), "run.json");
  const seed = parse(files.get("run.json")).seed ?? null;
  const wrong = seed === null ? flagged : others;
  expect(wrong.length === 0, `row ${wrong[0]}: flagged though the run has no seed, or not`);
  if (files.has("body_key.json")) {
    const said = parse(files.get("run.json")).body_key_sha256;
    expect(said === shaHex(files.get("body_key.json")), "the wrapped key of the bodies");
  }
  const found = {};
  for (const name of ["llm_calls", "exchanges", "fixtures", "wal"]) {
    const data = files.get(`${name}.jsonl`);
    if (data !== undefined) found[name] = digestForm(name, data, blobs);
  }
  expect(canonical(found) === canonical(seal.recordings), "other recordings were sealed");
  const rawPublic = unhex(proof.public_key);
  expect(shaHex(rawPublic) === seal.key_id, "the seal names another key");
  const { sig, ...unsigned } = seal;
  const signed = Buffer.concat([Buffer.from("bernstein.seal.v1\n"), jcs(unsigned)]);
  expect(isSigned(rawPublic, unhex(sig), signed), "the seal's signature");
  checkLog(proof, files.get("seal.json"), runId, rawPublic);
  return [shaHex(rawPublic), `run ${runId}, ${seal.status}, ${rows} rows, head ${head}`, flagged];
};

export const main = (args) => {
  if (args.length !== 1 && args.length !== 2) {
    console.log("usage: node verify.mjs BUNDLE.zip [KEY_FINGERPRINT]");
    return 2;
  }
  try {
    const [fingerprint, run, flagged] = checkBundle(args[0]);
    if (args.length === 1) {
      console.log(`holds in itself: ${run}\nsealed by ${fingerprint}`);
      return 2;
    }
    expect(fingerprint === args[1].toLowerCase(), `sealed by another key: ${fingerprint}`);
    if (flagged.length > 0) {
      const which = flagged.join(", ");
      console.log(`flagged: ${run}\nsealed by ${fingerprint}\na changed context: row ${which}`);
      return 1;
    }
    console.log(`verified: ${run}\nsealed by ${fingerprint}`);
    return 0;
  } catch (error) {
    const what = error instanceof Broken ? error.message : `this is not a bundle: ${error.message}`;
    console.log(`mismatch: ${what}`);
    return 1;
  }
};

if (process.argv[1] === fileURLToPath(import.meta.url)) process.exitCode = main(process.argv.slice(2));
