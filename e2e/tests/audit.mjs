import assert from "node:assert/strict";
import { press, says } from "../lib/acts.mjs";
import { scene } from "../lib/scene.mjs";

scene("the audit log shows actions with their target, actor and reason, including rejected ones", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop", {}, { needs_approval: true });
  await page.goto(`/ui/jobs/${id}`);
  await press(page, "Approve");
  await says(page, "Approve: done");
  await pod.api("PUT", "/admin/workers/lanes/audited", { slots: 1 }, "admin", { "X-Reason": "a quiet night" });
  await assert.rejects(pod.api("POST", "/admin/workers/lanes/audited/drain", {}, "viewer"), { status: 403 });

  await page.goto("/ui/audit");
  const row = (...texts) => texts.reduce((rows, text) => rows.filter({ hasText: text }), page.locator("tbody tr")).first();
  await row("olga", "job.approve", id, "done").waitFor();
  const made = row("ada", "lane audited", "done");
  await made.getByText("a quiet night").waitFor();
  await made.getByText("show").click();
  await made.locator("pre", { hasText: '"slots": 1' }).waitFor();
  await row("vera", "drain", "refused").waitFor();

  await page.getByLabel("Actor").fill("ada");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.waitForURL(/actor=ada/);
  assert.deepEqual([...new Set(await page.locator("tbody th").allInnerTexts())], ["ada"]);
  await page.getByLabel("Actor").fill("nobody");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText("No entries match").waitFor();
});
