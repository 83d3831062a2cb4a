// Asks the digit classifier with fetch, in Node.js 18 or a browser: node infer.mjs [URL]
import { readFile } from "node:fs/promises";

/** Runs a model, and returns its outputs by name. Waits and retries if the server is overloaded. */
export async function infer(url, model, inputs, attempts = 3) {
  const body = JSON.stringify({ inputs });
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(`${url}/v2/models/${model}/infer`, { method: "POST", body });
    const answer = await response.json();
    if (response.ok) return Object.fromEntries(answer.outputs.map((o) => [o.name, o.data]));
    if (response.status !== 429 || attempt === attempts) throw new Error(answer.error);
    const seconds = Number(response.headers.get("Retry-After") ?? 1);
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds * (1 + Math.random() / 2)));
  }
}

const file = new URL("../image-classifier/three.json", import.meta.url);
const [pixels] = JSON.parse(await readFile(file, "utf8")).X;
const url = process.argv[2] ?? "http://localhost:8000";
const x = { name: "X", datatype: "FP32", shape: [1, 64], data: pixels };
console.log("label", (await infer(url, "digits", [x])).label[0]);
