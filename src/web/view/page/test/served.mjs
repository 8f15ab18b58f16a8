// The page as the HTTP API of a head serves it, in two tabs, while the API's process is killed: node served.mjs LINK FOLDER. The caller has a cluster
// with lines of output, log records and metrics. It kills the process when FOLDER/kill is there, submits a task when FOLDER/go-on is, and ends that
// task when FOLDER/release is.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { check, open, run } from "./chromium.mjs";

const [link, folder] = process.argv.slice(2);

await run(["--disable-gpu"], async (browser) => {
  const { page, problems } = await open(browser, "light");
  await page.goto(link);
  await page.waitForSelector("tr.trace-row");
  const count = await page.locator("tr.trace-row").count();

  // A second tab of the browser needs no link; another browser does.
  const second = await open(browser, "light", { context: page.context() });
  await second.page.goto(new URL("/#/now", page.url()).href);
  await second.page.waitForSelector(".track");
  const stranger = await open(browser, "light");
  await stranger.page.goto(link);
  await stranger.page.waitForSelector("h1:has-text('This link does not work any more')");
  await stranger.page.context().close();

  // Logs and metrics with values, in both schemes.
  for (const scheme of ["light", "dark"]) {
    const { page: each, problems } = await open(browser, scheme, { storageState: await page.context().storageState() });
    await each.goto(new URL("/#/logs", page.url()).href);
    await each.waitForSelector(".lines li.stdout:has-text('a line of the task')");
    await each.waitForSelector(".lines li.stderr:has-text('what went wrong')");
    await each.waitForSelector(".lines li.record.warn:has-text('doubling')");
    await check(each, folder, `logs-full-${scheme}`);
    await each.fill(".tools input", "doubled");
    await each.waitForFunction(() => document.querySelectorAll(".lines li").length === 1);
    await each.click(".lines li .of a");
    await each.waitForSelector(".written li.own, .written li:has-text('is doubled')");
    await each.goto(new URL("/#/metrics", page.url()).href);
    await each.waitForSelector(".card:has-text('shop.items') .bucket");
    // A rate takes two looks.
    await each.waitForSelector(".card .series strong i:has-text('/s')");
    await check(each, folder, `metrics-full-${scheme}`);
    await each.click(".card:has(h2:text-is('tracer.task.duration')) a.bucket >> nth=0");
    await each.waitForSelector(".row");
    assert.deepEqual(problems, []);
    await each.context().close();
  }
  assert.deepEqual([...problems, ...second.problems], []);

  // What the head of the page says is kept: it may last no longer than the next attempt.
  const tabs = [page, second.page];
  for (const tab of tabs) {
    await tab.waitForSelector(".live:not(.off)");
    await tab.evaluate(() => {
      window.said = [];
      const status = document.querySelector(".live");
      new MutationObserver(() => window.said.push(status.textContent)).observe(status, { subtree: true, childList: true, characterData: true, attributes: true });
    });
  }
  writeFileSync(join(folder, "kill"), "");
  for (const tab of tabs) {
    await tab.waitForFunction(() => window.said.includes("not connected"));
    await tab.waitForSelector(".live:not(.off)");
    await tab.waitForSelector(".problem", { state: "detached" });
    assert.equal(await tab.evaluate(() => performance.getEntriesByType("navigation").length), 1, "without being loaded again");
  }
  writeFileSync(join(folder, "go-on"), "");
  await page.waitForFunction((count) => document.querySelectorAll("tr.trace-row").length > count, count);
  await page.waitForSelector("tr.trace-row.running");
  await second.page.waitForSelector(".track.busy .bar.user:has-text('inner')");
  writeFileSync(join(folder, "release"), "");
  await second.page.waitForSelector(".bar.user", { state: "detached" });
  await page.waitForSelector("tr.trace-row.running", { state: "detached" });
});
