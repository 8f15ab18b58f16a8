// Measures the page in Chromium: node speed.mjs LINK TRACE FOLDER. Prints figures as JSON. With the program TRACER it also submits tasks, and measures how
// long it takes until their spans are on the page.
import { spawn } from "node:child_process";
import { existsSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run, watch } from "./chromium.mjs";

const [link, trace, folder] = process.argv.slice(2);

await run(["--disable-gpu", "--enable-precise-memory-info", "--js-flags=--expose-gc"], async (browser) => {
  const page = watch(await browser.newPage({ viewport: { width: 1400, height: 900 } }));
  await page.goto(link);
  await page.waitForSelector(`tr.trace-row a[href*="${trace}"]`);

  const figures = await page.evaluate(async (trace) => {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const cost = async (change) => {
      // What is done at once, and what the next frame does: without the time between them.
      let at = performance.now();
      change();
      await null;
      const sync = performance.now() - at;
      let drawn = 0;
      await new Promise((done) => {
        requestAnimationFrame(() => {
          at = performance.now();
          const channel = new MessageChannel();
          channel.port1.onmessage = () => {
            drawn = performance.now() - at;
            done();
          };
          channel.port2.postMessage(0);
        });
      });
      return sync + drawn;
    };
    const tasks = [];
    const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration)));
    const start = performance.now();
    document.querySelector(`tr.trace-row a[href*="${trace}"]`).click();
    while (!document.querySelector(".row")) await frame();
    await cost(() => {});
    const click_to_picture_ms = performance.now() - start;
    // What comes after the picture: attempts and waits.
    await new Promise((done) => setTimeout(done, 1000));
    observer.observe({ type: "longtask" });
    const rows = document.querySelector(".rows");
    const costs = [];
    const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    for (let at = 0; at < 60; at++) costs.push(await cost(() => (rows.scrollTop = Math.random() * rows.scrollHeight)));
    for (let at = 0; at < 30; at++) costs.push(await cost(() => press(at % 3 === 0 ? "s" : "w")));
    for (let at = 0; at < 30; at++) costs.push(await cost(() => press(at % 2 === 0 ? "a" : "d")));
    observer.disconnect();
    costs.sort((one, other) => one - other);
    gc();
    await frame();
    const rank = (share) => costs[Math.ceil(share * costs.length) - 1];
    const size = document.querySelector(".rows").getAttribute("aria-rowcount");
    return { rows: Number(size), click_to_picture_ms, frame_p50_ms: rank(0.5), frame_p95_ms: rank(0.95), longest_task_ms: Math.max(0, ...tasks), heap_mb: performance.memory.usedJSHeapSize / 1e6 };
  }, trace);

  // From a span's start to its bar on the page.
  if (process.env.TRACER) {
    await page.evaluate(() => (location.hash = "#/now"));
    await page.waitForSelector(".figures");
    const delays = [];
    for (let at = 0; at < Number(process.env.SUBMISSIONS ?? 5); at++) {
      const [started, release] = ["started", "release"].map((name) => join(folder, `${name}-${at}`));
      const seen = page.evaluate(
        () =>
          new Promise((done) => {
            const look = () => [...document.querySelectorAll(".bar .text")].some((text) => text.textContent.includes("inner"));
            const observer = new MutationObserver(() => {
              if (!look()) return;
              observer.disconnect();
              done(Date.now());
            });
            observer.observe(document.body, { subtree: true, childList: true, characterData: true });
          }),
      );
      const child = spawn(process.env.TRACER, ["submit", "task", "misbehaving_tasks:waits_in_nested_spans", JSON.stringify(started), JSON.stringify(release)], { stdio: "ignore" });
      const ended = new Promise((done) => child.on("exit", done));
      const shown = await seen;
      while (!existsSync(started)) await new Promise((done) => setTimeout(done, 5));
      delays.push(Math.max(0, shown - statSync(started).mtimeMs));
      writeFileSync(release, "");
      await ended;
      await page.waitForFunction(() => ![...document.querySelectorAll(".bar .text")].some((text) => text.textContent.includes("inner")));
    }
    delays.sort((one, other) => one - other);
    figures.start_to_page_p95_ms = delays[Math.ceil(0.95 * delays.length) - 1];
  }
  return JSON.stringify(figures);
});
