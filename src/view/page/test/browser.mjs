// Drives the page in Chromium: node browser.mjs LINK FOLDER. The caller has a cluster with a trace whose root is `tracer job`, one that failed, and one
// that runs until the file FOLDER/release is there. Screenshots go to FOLDER.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "package.json"));
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

const [link, folder] = process.argv.slice(2);
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const problems = [];

async function open(colorScheme) {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1200, height: 700 } });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  // Violations of the content security policy are errors of the console too.
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(error.message));
  return page;
}

async function check(page, name) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes[0].html]), [], name);
  await page.screenshot({ path: join(folder, `${name}.png`) });
}

const page = await open("light");
await page.goto(link);
await page.waitForSelector("tbody tr");
assert.ok(!page.url().includes("code="), "the code does not stay in the address");
assert.equal(await page.title(), "tracer");
await check(page, "traces-light");

// A query, and one that does not parse.
await page.fill("input.query", "error");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
assert.ok(page.url().includes("query=error"));
await page.fill("input.query", "kind:consumr");
await page.waitForSelector(".problem");
const mistake = await page.textContent(".problem");
assert.match(mistake, /\^\^\^\^\^\^\^/);
assert.match(mistake, /did you mean `consumer`/);
await page.fill("input.query", "");
problems.length = 0; // The answer 400 is written to the console too.

// A region of the heat map by keys: its traces, and what is different in them.
await page.focus(".heat canvas");
await page.keyboard.press("ArrowRight");
await page.waitForSelector(".differences table, .differences p");
assert.match(page.url(), /since=.*min_ns=/);
await page.keyboard.press("Escape");
await page.waitForFunction(() => !location.hash.includes("since="));
// And by a drag over its left half, in which there is the first trace.
const box = await page.locator(".heat canvas").boundingBox();
await page.mouse.move(box.x + 1, box.y + 1);
await page.mouse.down();
await page.mouse.move(box.x + 3, box.y + box.height - 1, { steps: 3 });
await page.mouse.up();
await page.waitForSelector(".differences caption");
assert.match(await page.textContent(".differences caption"), /^What is different in 1 trace, beside \d others?$/);
await page.waitForFunction(() => document.querySelectorAll("tbody tr:has(td.root)").length === 1);
await check(page, "differences-light");
await page.click(".differences .term >> nth=0");
await page.waitForFunction(() => location.hash.includes("query="));
await page.click(".heat button");
await page.fill("input.query", "");
await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 1);

// What runs is on the page, and grows.
await page.click("nav a:has-text('Now')");
await page.waitForSelector(".now li");
const age = () => page.textContent(".now li .number");
const before = await age();
await page.waitForFunction((before) => document.querySelector(".now li .number").textContent !== before, before);
await check(page, "now-light");

// The trace that runs, until it ends.
await page.click(".now li a");
await page.waitForSelector(".row.running");
assert.match(page.url(), /#\/trace\/[0-9a-f]{32}\?span=[0-9a-f]{16}$/);
await page.waitForSelector(".details h2");
writeFileSync(join(folder, "release"), "");
await page.waitForFunction(() => document.querySelectorAll(".row.running").length === 0);

// The trace that failed, by keys.
await page.click("nav a:has-text('Traces')");
await page.click("tbody tr.error a");
await page.waitForSelector(".row.error");
const rows = await page.locator(".row").count();
assert.ok(rows >= 3, `${rows} rows`);
await page.keyboard.press("e");
await page.waitForSelector(".row.selected.error");
const selected = () => page.getAttribute(".row.selected", "aria-rowindex");
await page.keyboard.press("j");
await page.waitForFunction(() => document.querySelector(".row.selected")?.getAttribute("aria-rowindex") === "2");
await page.keyboard.press("k");
await page.waitForFunction(() => document.querySelector(".row.selected")?.getAttribute("aria-rowindex") === "1");
assert.equal(await selected(), "1");
// A key that is pressed as soon as the row before it is selected acts on that row.
await page.evaluate(
  () =>
    new Promise((done) => {
      const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
      const index = () => document.querySelector(".row.selected")?.getAttribute("aria-rowindex");
      let isBack = false;
      const observer = new MutationObserver(() => {
        if (!isBack && index() === "2") {
          isBack = true;
          press("k");
        } else if (isBack && index() === "1") {
          observer.disconnect();
          done();
        }
      });
      observer.observe(document.body, { subtree: true, childList: true, attributes: true });
      press("j");
    }),
);
await page.keyboard.press("h");
await page.waitForFunction(() => document.querySelectorAll(".row").length === 1);
await page.keyboard.press("l");
await page.waitForFunction((rows) => document.querySelectorAll(".row").length === rows, rows);
await page.keyboard.press("/");
await page.keyboard.type("remote_worker");
await page.waitForFunction(() => document.querySelector(".summary [role=status]")?.textContent === "1 found");
await page.keyboard.press("Enter");
await page.waitForSelector(".row.selected:has-text('remote_worker')");
await page.keyboard.press("w");
await page.waitForFunction(() => location.hash.includes("from="));
await page.keyboard.press("0");
await page.waitForFunction(() => !location.hash.includes("from="));
await check(page, "trace-light");

// Something is drawn: pixels of more than one colour.
const colours = (canvas) =>
  page.evaluate((canvas) => {
    const { width, height } = document.querySelector(canvas);
    const { data } = document.querySelector(canvas).getContext("2d").getImageData(0, 0, width, height);
    return new Set(new Uint32Array(data.buffer)).size;
  }, canvas);
assert.ok((await colours("canvas.minimap")) > 2);

// The other layouts, by a key and by a button.
await page.keyboard.press("t");
await page.waitForFunction(() => location.hash.includes("as=tracks"));
await page.waitForSelector(".chart canvas");
await page.waitForFunction(() => document.querySelector(".chart canvas").width > 300);
await page.locator(".chart .over").hover({ position: { x: 300, y: 33 } });
await page.waitForFunction(() => document.querySelector(".pointed").textContent.trim() !== "");
assert.ok((await colours(".chart canvas")) > 2);
await check(page, "tracks-light");
await page.click(".shapes button:has-text('flame')");
await page.waitForFunction(() => location.hash.includes("as=flame"));
await page.locator(".chart .over").click({ position: { x: 100, y: 11 } });
await page.waitForSelector(".details h2:has-text('tracer job')");
await check(page, "flame-light");
await page.keyboard.press("t");
await page.waitForSelector(".row.selected:has-text('tracer job')");
await page.keyboard.press("n");
await page.waitForSelector(".row.selected:has-text('remote_worker')");

// The address alone shows the same again, in another tab of the same browser.
const again = await page.context().newPage();
await again.goto(page.url());
await again.waitForSelector(".row.selected:has-text('remote_worker')");
assert.equal(await again.inputValue(".summary input"), "remote_worker");

// Without a link there is nothing, nor with one that was used.
const stranger = await open("dark");
await stranger.goto(link);
await stranger.waitForSelector("h1:has-text('This link does not work any more')");
assert.equal(await stranger.locator("tbody tr").count(), 0);
problems.pop(); // The answer 401.

assert.deepEqual(problems, []);
await browser.close();
console.log("ok");
