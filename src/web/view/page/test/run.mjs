// Runs the tests of pure functions, built into the folder that is named.
import { build } from "esbuild";
import { readdirSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2] ?? "node_modules/.test");
for (const file of readdirSync("test").filter((file) => file.endsWith(".test.ts"))) {
  const outfile = join(folder, `${basename(file, ".ts")}.mjs`);
  await build({ entryPoints: [join("test", file)], bundle: true, platform: "node", format: "esm", target: "node18", outfile, logLevel: "error" });
  await import(pathToFileURL(outfile).href);
}
