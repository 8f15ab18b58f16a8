// Opens an export in speedscope's own page: node speedscope.mjs PROFILE NAME. The page says the name of the profile when it has read it.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { run, watch } from "./chromium.mjs";

const [profile, name] = process.argv.slice(2);
const release = join(process.cwd(), "node_modules/speedscope/dist/release");
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json" };
const server = createServer(async (request, response) => {
  const path = new URL(request.url, "http://localhost").pathname;
  try {
    const body = await readFile(path === "/profile.json" ? profile : join(release, path.replace(/\.\./g, "")));
    response.writeHead(200, { "content-type": types[extname(path)] ?? "application/octet-stream" }).end(body);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const url = `http://127.0.0.1:${server.address().port}`;
await run(["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"], async (browser) => {
  const page = watch(await browser.newPage());
  const problems = [];
  page.on("pageerror", (error) => problems.push(error.message));
  await page.goto(`${url}/index.html#profileURL=${encodeURIComponent(`${url}/profile.json`)}`);
  await page.waitForFunction((name) => document.body.innerText.includes(name), name);
  assert.deepEqual(problems, []);
});
