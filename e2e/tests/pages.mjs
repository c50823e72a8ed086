import assert from "node:assert/strict";
import { furnish, kinds } from "../lib/gallery.mjs";
import { look } from "../lib/look.mjs";
import { start } from "../lib/pod.mjs";
import { keep, once, scene } from "../lib/scene.mjs";

const fresh = once(() => start("web-1", { env: { TRAPEZE_KINDS: kinds } }));
const furnished = once(async () => { const made = await furnish(await fresh()); made.helpers.forEach(keep); return { ids: made.ids, stop() {} }; });

// open opens a dashboard page and waits until its live updates have started, unless it needs none.
async function open(page, path) {
  await page.goto("/ui/" + path);
  await page.locator("main[data-still], #pulse.live, body:not([data-live]) #pulse:not(:empty)").first().waitFor({ state: "attached" });
}

for (const [name, path, says] of [
  ["empty-now", "", "No waiting jobs."],
  ["empty-pipelines", "pipelines", "There are no pipelines yet."],
  ["empty-jobs", "jobs", "There are no jobs yet."],
  ["empty-failures", "failures", "No job failed in this period."],
  ["empty-schedules", "schedules", "There are no schedules yet."],
  ["empty-audit", "audit?action=job.cancel", "No entries match."], // the sign-in is an entry
]) {
  scene(`a fresh database: /ui/${path} explains that there is nothing yet`, async ({ page }) => {
    await open(page, path);
    await page.getByText(says).waitFor();
    await look(page, name, ["empty-now", "empty-schedules"].includes(name) ? ["light"] : []);
  }, { on: fresh });
}

for (const [name, path] of Object.entries({
  now: () => "", pipelines: () => "pipelines", pipeline: (ids) => `pipelines/${ids.pipeline}`, "pipeline-done": (ids) => `pipelines/${ids.chain}`,
  failures: () => "failures", jobs: () => "jobs", "job-running": (ids) => `jobs/${ids.running}`, "job-failed": (ids) => `jobs/${ids.failed}`,
  schedules: () => "schedules", schedule: () => "schedules/reports-hourly", "job-waits": (ids) => `jobs/${ids.waits}`, "job-remote": (ids) => `jobs/${ids.remote}`,
  lanes: () => "lanes", kinds: () => "kinds?window=24h", pods: () => "pods", audit: () => "audit",
})) {
  scene(`/ui/: ${name} is accessible in the light theme, in the dark theme and on a phone`, async ({ page }) => {
    const { ids } = await furnished();
    await open(page, path(ids));
    await look(page, name, name === "pipeline-done" ? [] : name === "job-waits" ? ["light"] : undefined);
  }, { on: fresh, within: 120_000 }); // the first scene also waits for the sample data
}

scene("remote workers are marked wherever pods are named", async ({ page }) => {
  const { ids } = await furnished();
  await open(page, "");
  for (const row of [page.locator(`#run-${ids.remote}`), page.locator("section[aria-labelledby=h-pods] tr", { hasText: "gpu-1" })]) {
    await row.getByText("remote", { exact: true }).waitFor();
  }
  await open(page, "pods");
  const marks = page.getByText("remote", { exact: true });
  await marks.first().waitFor();
  assert.equal(await marks.count(), 2, "the pods are not, and the worker that died is");
  await page.getByText("of gpu, stream 1").first().waitFor();
  await open(page, `jobs/${ids.remote}`);
  await page.locator(".facts").getByText("remote", { exact: true }).waitFor();
  assert.equal(await page.locator("section[aria-labelledby=h-attempts]").getByText("remote", { exact: true }).count(), 2, "each attempt was elsewhere");
}, { on: fresh });

scene("settings, dialogs, rejections and errors are accessible", async ({ page }) => {
  await furnished();
  await open(page, "lanes");
  await page.locator("#edit-reports summary").click();
  await look(page, "lane-settings", ["light"]);
  await open(page, "jobs");
  await page.getByLabel("Select all jobs on this page").check();
  await page.getByRole("button", { name: "Cancel …" }).click();
  await look(page, "bulk", ["light"]);
  await page.keyboard.press("Escape");
  await open(page, "jobs?state=open");
  await page.getByRole("button", { name: "Cancel all matching …" }).click();
  await page.locator("#ask li").first().waitFor();
  await look(page, "bulk-filter", ["light"]);
  await page.keyboard.press("Escape");
  await open(page, "schedules/reports-hourly");
  await page.locator("#edit summary").click();
  await page.locator(".preview li").first().waitFor();
  await look(page, "schedule-edit", ["light"]);
  await page.locator("#edit").getByLabel("Expression").fill("0 25 * * *");
  await page.locator(".preview.wrong").waitFor();
  await look(page, "schedule-wrong", []);
  await open(page, "jobs?state=sideways");
  await look(page, "problem", []);
}, { on: fresh, expected: [/status of 4(00|22)/] });

scene("the login page is accessible", async ({ page }) => {
  await open(page, "login?failed=1");
  await look(page, "login");
}, { on: fresh, as: null, expected: [/status of 401/] });
