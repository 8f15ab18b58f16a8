// Drives the page in Chromium: node browser.mjs LINK FOLDER. The caller has a cluster with a trace whose root is `tracer job`, one that failed, one
// of hostile names, and one that runs until the file FOLDER/release is there. Screenshots go to FOLDER.
import assert from "node:assert/strict";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { check, open, run, watch } from "./chromium.mjs";

const [link, folder] = process.argv.slice(2);

await run(["--disable-gpu"], async (browser) => {
  const { page, problems } = await open(browser, "light");
  // Timers that run again and again are counted.
  await page.addInitScript(() => {
    const running = (window.intervals = new Set());
    const [set, clear] = [window.setInterval, window.clearInterval];
    window.setInterval = (...arguments_) => {
      const timer = set(...arguments_);
      running.add(timer);
      return timer;
    };
    window.clearInterval = (timer) => {
      running.delete(timer);
      clear(timer);
    };
  });
  await page.goto(link);
  await page.waitForSelector("tbody tr");
  assert.ok(!page.url().includes("code="), "the code does not stay in the address");
  assert.equal(await page.title(), "tracer");
  await check(page, folder, "traces-light");

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
  await check(page, folder, "differences-light");
  await page.click(".differences .term >> nth=0");
  await page.waitForFunction(() => location.hash.includes("query="));
  // Where a query leaves nothing to choose from, the region can be left all the same.
  await page.fill("input.query", "name:no_such_span");
  await page.click(".heat button >> text=Leave this region");
  await page.waitForFunction(() => !location.hash.includes("since="));
  await page.fill("input.query", "");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length > 1);

  // Traces by their roots, and a row by keys.
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("b");
  await page.waitForSelector("caption:has-text('by')");
  await page.waitForSelector("tbody tr:has-text('wordcount.frequencies')");
  await check(page, folder, "groups-light");
  await page.keyboard.press("b");
  await page.waitForSelector("tr.trace-row");
  await page.keyboard.press("j");
  await page.waitForSelector("tr.trace-row.selected");

  // Each view by its key, in both schemes, without a serious finding.
  const { page: dark } = await open(browser, "dark", { storageState: await page.context().storageState(), problems });
  await dark.goto(page.url());
  await dark.waitForSelector("tbody tr");
  const views = [
    ["1", "traces", "tr.trace-row"],
    ["2", "now", ".track .bar"],
    ["3", "tasks", "tbody tr"],
    ["4", "actors", ".empty:has-text('There is no actor')"],
    ["5", "workers", "tbody tr:has-text('busy')"],
    ["6", "services", ".empty:has-text('Nothing is served')"],
    ["7", "logs", ".logs .empty, .logs li"],
    ["8", "metrics", ".metrics .empty, .card"],
    ["9", "compare", ".sides"],
  ];
  for (const [each, scheme] of [[page, "light"], [dark, "dark"]]) {
    for (const [key, name, there] of views) {
      await each.keyboard.press(key);
      await each.waitForSelector(there);
      assert.match(each.url(), new RegExp(`#/${name}`));
      await check(each, folder, `${name}-${scheme}`);
    }
  }
  await dark.close();
  // Where there is no HTTP API, a view says so; the answers 404 are written to the console too.
  problems.splice(0, problems.length, ...problems.filter((problem) => !/status of 404/.test(problem)));

  // The keys of what is shown.
  await page.keyboard.press("3");
  await page.waitForSelector("h1:has-text('Tasks')", { state: "attached" });
  await page.waitForSelector("th:has-text('Result')", { state: "attached" });
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open] dd:has-text('next state')");
  await check(page, folder, "keys-light");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog[open]", { state: "hidden" });

  // Tasks: those that failed, and from one to its span.
  await page.click(".shapes button:has-text('failed')");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 1);
  assert.match(await page.textContent("tbody tr"), /panics_in_span.*panicked/s);
  await page.fill(".tools input", "nothing of that name");
  await page.waitForSelector(".empty:has-text('No task is found')");
  await page.fill(".tools input", "");
  await page.click("tbody tr a");
  await page.waitForSelector(".row.selected.error");
  assert.match(await page.textContent(".together"), /The only attempt at task \d+.*MiB/s);

  // Everything that was written meanwhile: the event of the panic leads to its span; why nothing ran.
  await page.keyboard.press("o");
  await page.waitForSelector(".written li:has-text('inside')");
  await check(page, folder, "written-light");
  await page.fill(".written input", "nothing of that kind");
  await page.waitForSelector(".written .empty");
  await page.fill(".written input", "");
  await page.click(".written li button >> nth=0");
  await page.waitForSelector(".written li.own");
  await page.keyboard.press("i");
  await page.waitForSelector(".waits");
  await page.waitForFunction(() => location.hash.includes("panel=waits"));
  const waits = await page.locator(".waits li").count();
  if (waits > 0) {
    await page.keyboard.press("g");
    await page.waitForFunction(() => /gaps=(folded|shown)/.test(location.hash));
    await page.keyboard.press("g");
  }
  await page.keyboard.press("Escape");
  await page.waitForSelector(".details", { state: "detached" });

  // A search over attributes, in the language of questions.
  await page.keyboard.press("/");
  await page.keyboard.type("tracer.attempt=1");
  await page.waitForFunction(() => document.querySelector(".tools [role=status]")?.textContent === "1 found");
  await page.keyboard.press("Escape");
  await page.fill(".tools input", "");

  // Beside another trace.
  await page.keyboard.press("Escape");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("x");
  await page.waitForFunction(() => location.hash.includes("after="));
  await page.fill("label:has-text('Before') input", "name:wordcount");
  await page.waitForSelector("tr:has-text('panics_in_span') .badge:has-text('only after')");
  await page.waitForSelector("tr:has-text('wordcount.frequencies') .badge:has-text('only before')");
  await check(page, folder, "compare-light");
  await page.fill("label:has-text('Before') input", "kind:consumr");
  await page.waitForSelector(".problem");
  problems.length = 0; // The answer 400.

  // Names, attributes and events that would be scripts or turn the text around are texts.
  await page.goto(page.url().replace(/#.*/, "#/traces?query=name:onerror"));
  await page.click("tr.trace-row");
  await page.waitForSelector(".row");
  await page.keyboard.press("j");
  await page.waitForSelector(".details h2");
  await page.keyboard.press("o");
  await page.waitForSelector(".written li");
  const hostile = await page.evaluate(() => document.body.innerHTML.replace(/<title>.*?<.title>/, ""));
  assert.ok(hostile.includes("&lt;img src=x onerror=alert(1)&gt;"), "the name is a text");
  assert.ok(!/[\u202e\u0007\u200b]/.test(await page.evaluate(() => document.body.innerText)), "what would not be seen is not there as it is");
  assert.match(await page.textContent(".row .name"), /\\u\{202e\}.*\\u\{7\}/);
  assert.equal(await page.locator("main img, main script").count(), 0);
  for (const shape of ["tracks", "flame"]) {
    await page.keyboard.press("t");
    await page.waitForFunction((shape) => location.hash.includes(`as=${shape}`), shape);
  }
  await check(page, folder, "hostile-light");

  // The connection breaks, and comes back.
  await page.context().setOffline(true);
  await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
  await page.click("nav a:has-text('Now')");
  await page.waitForSelector(".problem, .live.off");
  await page.context().setOffline(false);
  await page.waitForSelector(".live:not(.off)");
  await page.waitForSelector(".problem", { state: "detached" });
  problems.length = 0; // The requests that failed.

  // What runs is on the page, and grows.
  await page.waitForSelector(".track .bar");
  const age = () => page.textContent(".track .bar .number");
  const before = await age();
  await page.waitForFunction((before) => document.querySelector(".track .bar .number").textContent !== before, before);
  await page.waitForSelector(".track.busy .bar.user:has-text('inner')");
  assert.match(await page.textContent(".figures"), /1 of 1 busy/);

  // A hidden tab asks for nothing and has no timer.
  const hide = (isHidden) =>
    page.evaluate((isHidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, isHidden);
  assert.ok((await page.evaluate(() => window.intervals.size)) > 0, "what grows needs a timer");
  await hide(true);
  await page.waitForFunction(() => window.intervals.size === 0, undefined, { polling: 20 });
  const asked = [];
  const note = (request) => asked.push(request.url());
  page.on("request", note);

  // Meanwhile something changes.
  const token = await page.evaluate(() => localStorage.getItem("tracer.viewer"));
  const api = (path) => fetch(new URL(`/api/v1/${path}`, page.url()), { headers: { authorization: `Bearer ${token}` } }).then((answer) => answer.json());
  const revision = (await api("traces")).revision;
  writeFileSync(join(folder, "extra.json"), await (await import("node:fs/promises")).readFile(join(folder, "hostile.json")));
  renameSync(join(folder, "extra.json"), join(folder, "spans", "999999999.json"));
  for (let found = revision; found === revision; ) found = (await api("traces")).revision;
  assert.deepEqual(asked, [], "nothing was asked while nobody looked");
  page.off("request", note);
  await hide(false);
  await page.waitForSelector(".live:not(.off)");

  // The trace that runs, until it ends.
  await page.click(".track .bar");
  await page.waitForSelector(".row.running");
  assert.match(page.url(), /#\/trace\/[0-9a-f]{32}\?span=[0-9a-f]{16}$/);
  await page.waitForSelector(".details h2");
  writeFileSync(join(folder, "release"), "");
  await page.waitForFunction(() => document.querySelectorAll(".row.running").length === 0);
  await page.keyboard.press("Escape");

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
  await page.waitForFunction(() => document.querySelector(".tools [role=status]")?.textContent === "1 found");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".row.selected:has-text('remote_worker')");
  await page.keyboard.press("w");
  await page.waitForFunction(() => location.hash.includes("from="));
  await page.keyboard.press("0");
  await page.waitForFunction(() => !location.hash.includes("from="));
  await check(page, folder, "trace-light");

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
  await check(page, folder, "tracks-light");
  await page.click(".shapes button:has-text('flame')");
  await page.waitForFunction(() => location.hash.includes("as=flame"));
  await page.locator(".chart .over").click({ position: { x: 100, y: 11 } });
  await page.waitForSelector(".details h2:has-text('tracer job')");
  await check(page, folder, "flame-light");
  const root = await page.evaluate(() => new URLSearchParams(location.hash.split("?")[1]).get("span"));
  await page.keyboard.press("t");
  await page.waitForSelector(".row.selected:has-text('tracer job')");
  await page.keyboard.press("n");
  await page.waitForSelector(".row.selected:has-text('remote_worker')");
  // The address follows a moment later.
  await page.waitForFunction((root) => {
    const parameters = new URLSearchParams(location.hash.split("?")[1]);
    return !parameters.has("as") && parameters.get("span") !== root;
  }, root);

  // The address alone shows the same again, in another tab of the same browser.
  const again = watch(await page.context().newPage());
  await again.goto(page.url());
  await again.waitForSelector(".row.selected:has-text('remote_worker')");
  assert.equal(await again.inputValue(".tools input"), "remote_worker");

  // Without a link there is nothing, nor with one that was used.
  const { page: stranger } = await open(browser, "dark", { problems });
  await stranger.goto(link);
  await stranger.waitForSelector("h1:has-text('This link does not work any more')");
  assert.equal(await stranger.locator("tbody tr").count(), 0);
  problems.pop(); // The answer 401.

  assert.deepEqual(problems, []);
});
