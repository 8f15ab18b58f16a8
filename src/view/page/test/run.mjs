// Runs the tests of pure functions, built into the folder that is named.
import { build } from "esbuild";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const outfile = resolve(join(process.argv[2] ?? "node_modules/.test", "layout.mjs"));
await build({ entryPoints: ["test/layout.test.ts"], bundle: true, platform: "node", format: "esm", target: "node18", outfile, logLevel: "error" });
await import(pathToFileURL(outfile).href);
