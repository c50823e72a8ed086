import assert from "node:assert/strict";
import { scene } from "../lib/scene.mjs";

scene("kinds are sorted by a column, with their pods and limits", async ({ page, pod }) => {
  const waits = await pod.submit("kind.of.nobody", {}, { foreign: true });
  await page.goto("/ui/");
  await page.getByRole("link", { name: "Kinds", exact: true }).click();
  await page.locator("th[aria-sort=descending]", { hasText: "Run p95" }).waitFor();
  const row = page.locator("tr", { hasText: "kind.of.nobody" });
  await row.getByText("no pod").waitFor();
  assert.match(await row.locator("[data-l=Waiting]").innerText(), /^1 oldest /);
  const sleep = page.locator("tr", { has: page.getByRole("rowheader", { name: "demo.sleep", exact: true }) });
  await sleep.locator("[data-l=Limits]", { hasText: /\d+ attempts?, \d+ crashes/ }).waitFor();
  await sleep.locator("summary").click();
  await sleep.getByText("web-1").waitFor();
  await page.getByRole("link", { name: "Waiting", exact: true }).click();
  await page.waitForURL(/order=waiting/);
  await page.locator("th[aria-sort=descending]", { hasText: "Waiting" }).waitFor();
  await page.getByRole("link", { name: "24h", exact: true }).click();
  await page.waitForURL(/order=waiting&window=24h/);
  await page.locator("tr", { hasText: "kind.of.nobody" }).getByRole("link", { name: "kind.of.nobody" }).click();
  await page.locator(`#job-${waits}`).waitFor();
  await pod.api("POST", `/jobs/${waits}/cancel`);
});
