// Builds dist/ from src/. The result is the same for the same lock file, byte for byte.
import { build } from "esbuild";
import { copyFile } from "node:fs/promises";

await build({
  entryPoints: { page: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  outdir: "dist",
});
await build({ entryPoints: { page: "src/page.css" }, minify: true, outdir: "dist" });
await copyFile("src/index.html", "dist/index.html");
