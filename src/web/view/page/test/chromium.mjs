// Chromium for the scripts of this folder, and what is said when one of them fails: the reason, and of each page where it was, what it showed and what
// it had written, with the times since the start.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "package.json"));
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

/** For each step: a machine with two cores may run the whole suite beside it. */
const STEP_MS = 120_000;
/** For the script, less than its caller waits. */
const SCRIPT_MS = 270_000;
/** For the answer of a page that is asked what it shows when the script has failed. */
const REPORT_MS = 5000;
const TEXT = 1500;
const QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic", "--no-first-run"];

const begun = performance.now();
const seconds = () => ((performance.now() - begun) / 1000).toFixed(1);
const pages = [];

/** Notes what a page writes and which of its requests fail. */
export function watch(page) {
  page.setDefaultTimeout(STEP_MS);
  const notes = [];
  const note = (text) => notes.push(`${seconds()} s ${text}`);
  pages.push({ page, notes });
  page.on("console", (message) => note(`console ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => note(`error: ${error.stack ?? error.message}`));
  page.on("requestfailed", (request) => note(`${request.url()} failed: ${request.failure()?.errorText}`));
  page.on("response", (response) => response.status() >= 400 && note(`${response.url()} answered ${response.status()}`));
  page.on("crash", () => note("the page crashed"));
  return page;
}

/** Opens a tab, in a browser context of its own unless one is given. What must not happen is added to `problems`. */
export async function open(browser, colorScheme, { context, storageState, problems = [] } = {}) {
  context ??= await browser.newContext({ colorScheme, storageState, viewport: { width: 1200, height: 700 } });
  const page = watch(await context.newPage());
  // Violations of the content security policy are errors of the console too.
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(error.message));
  // What an injected script would do.
  page.on("dialog", (dialog) => {
    problems.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  return { page, problems };
}

/** Fails if there is a serious finding of axe; makes a screenshot, in the folder TRACER_PAGE_SCREENSHOTS if that is set. */
export async function check(page, folder, name) {
  const { violations } = await new AxeBuilder({ page }).analyze();
  const serious = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(serious.map(({ id, nodes }) => [id, nodes[0].html]), [], name);
  await page.screenshot({ path: join(process.env.TRACER_PAGE_SCREENSHOTS ?? folder, `${name}.png`) });
}

async function report(reason) {
  const lines = [`failed after ${seconds()} s: ${reason?.stack ?? reason}`];
  for (const { page, notes } of pages.filter(({ page }) => !page.isClosed())) {
    lines.push(`page ${page.url()}`, ...notes.slice(-40).map((note) => `  ${note}`));
    const late = new Promise((done) => setTimeout(done, REPORT_MS, "(it does not answer)"));
    const text = await Promise.race([page.evaluate(() => document.body.innerText), late]).catch((error) => `(${error.message})`);
    lines.push("  it shows:", text.slice(0, TEXT).replace(/^/gm, "    "));
  }
  process.stderr.write(`${lines.join("\n")}\n`);
}

/** Does something with a browser that has these arguments; prints `ok`, or what it returns. Ends the process. */
export async function run(args, act) {
  let browser;
  const late = new Promise((_, fail) => setTimeout(() => fail(new Error(`the script has not ended within ${SCRIPT_MS / 1000} s`)), SCRIPT_MS));
  const work = async () => {
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    browser = await chromium.launch({ executablePath, timeout: STEP_MS, args: ["--no-sandbox", "--disable-dev-shm-usage", ...QUIET, ...args] });
    return act(browser);
  };
  let code = 0;
  try {
    const said = await Promise.race([work(), late]);
    console.log(said ?? "ok");
  } catch (error) {
    code = 1;
    await report(error);
  }
  const closed = browser?.close().catch(() => {});
  await Promise.race([closed, new Promise((done) => setTimeout(done, REPORT_MS))]);
  process.exit(code);
}
