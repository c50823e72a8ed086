// Checks how a page looks: contrast, names and roles with axe, the width, and screenshots.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { promisify } from "node:util";

const { source } = createRequire(import.meta.url)("axe-core");
const pictures = process.env.SCREENS ? new URL("../../docs/screens/", import.meta.url).pathname : "";
const largest = 170 << 10; // maximum size of a screenshot in bytes

const sizes = { desk: { width: 1200, height: 800 }, phone: { width: 360, height: 780 } };

const all = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], colours = ["color-contrast", "link-in-text-block"];

// accessible checks the page with axe-core, against WCAG 2.2 A and AA or against some of their rules.
async function accessible(page, where, rules) {
  await page.evaluate(source);
  const { violations } = await page.evaluate((runOnly) => window.axe.run(document, { runOnly, resultTypes: ["violations"] }), rules);
  const told = violations.map(({ id, help, nodes }) => `${id}: ${help}\n${nodes.slice(0, 4).map(({ html, failureSummary }) => `  ${html.slice(0, 200)}\n  ${failureSummary.replaceAll("\n", " ")}`).join("\n")}`);
  assert.deepEqual(told, [], `axe on ${where}`);
}

// fits checks that a page is not wider than the viewport, and names the elements that overflow it.
export async function fits(page, where) {
  const out = await page.evaluate(() => {
    const root = document.documentElement;
    if (root.scrollWidth <= innerWidth) return [];
    return [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1).slice(-3).map((one) => one.outerHTML.slice(0, 200));
  });
  assert.deepEqual(out, [], `${where} is as wide as its window`);
}

// picture saves a screenshot for the docs if screenshots were requested.
async function picture(page, name) {
  if (!pictures) return;
  await mkdir(pictures, { recursive: true });
  const path = pictures + name + ".png";
  await page.screenshot({ path, animations: "disabled", caret: "hide" });
  await promisify(execFile)("pngquant", ["--force", "--output", path, "--speed", "1", "--", path]).catch((error) => { if (error.code !== "ENOENT") throw error; });
  assert.ok((await stat(path)).size <= largest, `${path} is larger than ${largest} bytes`);
}

// look checks a page in the light theme, in the dark theme (colours only), and on a phone. It saves the requested
// screenshots.
export async function look(page, name, keep = ["light", "dark", "phone"]) {
  for (const [as, colorScheme, size, rules] of [["light", "light", sizes.desk, all], ["dark", "dark", sizes.desk, colours], ["phone", "light", sizes.phone, all]]) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme });
    await page.evaluate(() => scrollTo(0, 0));
    await fits(page, `${name}, ${as}`);
    await accessible(page, `${name}, ${as}`, rules);
    if (keep.includes(as)) await picture(page, `${name}-${as}`);
  }
  await page.setViewportSize(sizes.desk);
  await page.emulateMedia({ colorScheme: "light" });
}
