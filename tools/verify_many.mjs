// Reads lines of BUNDLE KEY_FINGERPRINT and answers each with the exit code of verify.mjs.
import { createInterface } from "node:readline";
import { main } from "../verifier/verify.mjs";

const answer = process.stdout.write.bind(process.stdout);
console.log = () => {};
for await (const line of createInterface({ input: process.stdin })) answer(`${main(line.split(" "))}\n`);
