import assert from "node:assert/strict";
import { scene } from "../lib/scene.mjs";

scene("kinds are sorted by a column, with their pods and limits", async ({ page, pod }) => {
  const waits = await pod.submit("kind.of.nobody", {}, { allow_unregistered: true });
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

scene("unknown kinds that a submitter chooses share a row of the Now page", async ({ page, pod, undo }) => {
  await pod.api("PUT", "/admin/workers/lanes/strangers", {});
  undo(() => pod.api("POST", "/admin/workers/jobs/cancel", { filter: { lane: "strangers" } }));
  for (let n = 10; n < 25; n++) await pod.submit(`stranger.${n}`, {}, { allow_unregistered: true, lane: "strangers" }, "submitter");
  await page.goto("/ui/");
  const rows = page.locator("section[aria-labelledby=h-waiting] tbody tr", { hasText: "strangers" });
  await rows.filter({ hasText: "5 other kinds" }).waitFor();
  assert.equal(await rows.count(), 11, "ten kinds have rows of their own");
  const shared = rows.filter({ hasText: "5 other kinds" });
  assert.equal(await shared.locator("[data-l=Jobs]").innerText(), "5");
  assert.match(await shared.getByRole("rowheader").innerText(), /no live pod has a handler|no pod|handler/i);
  await shared.getByRole("link").click();
  await page.getByRole("heading", { name: /^stranger\.\d\d/ }).waitFor();
});
