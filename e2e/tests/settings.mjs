import assert from "node:assert/strict";
import { again, press, says, state, stay } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { people } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

scene("while the queue is paused or frozen, every page shows it", async ({ page, pod, undo }) => {
  undo(() => pod.api("POST", "/admin/workers/resume"));
  undo(() => pod.api("POST", "/admin/workers/unfreeze"));
  await page.goto("/ui/audit");
  const same = await stay(page);
  assert.equal(await page.locator(".banner").count(), 0);
  await pod.api("POST", "/admin/workers/pause");
  await again(page);
  await page.locator(".banner", { hasText: "The queue is paused: no job starts." }).waitFor();
  await same();
  for (const path of ["", "pipelines", "jobs", "jobs/new", "schedules", "lanes", "pods", "settings", "settings/doctor"]) {
    await page.goto("/ui/" + path);
    await page.locator(".banner", { hasText: "paused" }).waitFor();
  }
  await look(page, "banner", []);
  await pod.api("POST", "/admin/workers/freeze");
  await pod.api("POST", "/admin/workers/resume");
  await page.goto("/ui/jobs");
  await page.locator(".banner", { hasText: "frozen for maintenance" }).waitFor();
  await pod.api("POST", "/admin/workers/unfreeze");
  await page.locator(".banner").waitFor({ state: "detached" });
});

scene("the retention of a kind is set and removed, and the limits are shown", async ({ page, pod, undo }) => {
  undo(() => pod.api("DELETE", "/admin/workers/retention/demo.hash/failed"));
  await page.goto("/ui/settings");
  await page.locator("#h-limits ~ table", { hasText: "TRAPEZE_MAX_ATTEMPTS" }).waitFor();
  await page.locator("#set-retention summary").click();
  await look(page, "settings", []);
  const form = page.locator("#set-retention form");
  await form.getByLabel("Kind").fill("demo.hash");
  await form.getByLabel("State").selectOption("failed");
  await form.getByLabel("Keep, seconds").fill("259200");
  await form.getByRole("button", { name: "Save" }).click();
  await page.locator("#ask-yes").click();
  await says(page, "Retention: done");
  const row = page.locator("#h-kinds ~ table tr", { hasText: "demo.hash" });
  await row.getByText("3d 0h").waitFor();
  await press(page, "Remove retention of failed jobs of kind demo.hash");
  await row.waitFor({ state: "detached" });
});

scene("all jobs are downloaded", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop");
  await pod.reaches(id, "succeeded");
  await page.goto("/ui/settings");
  const download = page.waitForEvent("download");
  await page.getByRole("link", { name: "Download all jobs" }).click();
  const stream = await (await download).createReadStream();
  let text = "";
  for await (const part of stream) text += part;
  assert.ok(text.trim().split("\n").map(JSON.parse).some((job) => job.id === id));
});

scene("a role is created, granted, revoked and deleted", async ({ page, pod }) => {
  await page.goto("/ui/settings/roles");
  await page.locator("#add-role summary").click();
  await page.locator("#add-grant summary").click();
  await look(page, "roles", []);
  const role = page.locator("#add-role form");
  await role.getByLabel("Name").fill("auditor");
  await role.getByLabel("For whose jobs").selectOption("all");
  await role.getByLabel("Permissions").fill("audit:read\njobs:read");
  await role.getByRole("button", { name: "Save" }).click();
  await says(page, "Role: saved");
  await page.locator("#role-auditor", { hasText: "audit:read" }).waitFor();
  const grant = page.locator("#add-grant form");
  await page.reload();
  await page.locator("#add-grant summary").click();
  await grant.getByLabel("Principal").fill("vera");
  await grant.getByLabel("Role").selectOption("auditor");
  await grant.getByRole("button", { name: "Grant" }).click();
  await says(page, "Grant: saved");
  await page.locator("#h-grants ~ table tr", { hasText: "vera" }).getByText("auditor", { exact: true }).waitFor();
  await pod.api("GET", "/admin/audit?limit=1", undefined, "viewer"); // the grant is in force
  await press(page, "Revoke auditor of vera");
  await page.locator("#h-grants ~ table tr", { hasText: "vera" }).waitFor({ state: "detached" });
  await press(page, "Delete role auditor");
  await page.locator("#role-auditor").waitFor({ state: "detached" });
}, { as: "admin" });

scene("doctor's findings are shown with their remedies, and a viewer does not see roles", async ({ page }) => {
  await page.goto("/ui/settings/doctor");
  await page.locator("tbody tr", { hasText: "durability" }).waitFor();
  await look(page, "doctor", []);
  assert.equal(await page.getByRole("link", { name: "Roles and grants" }).count(), 0);
  assert.equal(await page.locator("main button, main form").count(), 0);
  assert.equal((await page.goto("/ui/settings/roles")).status(), 403);
}, { as: "viewer", expected: [/status of 403/] });

scene("after a session has ended, the sign-in page states that the last action was not performed", async ({ page, pod }) => {
  const id = await pod.submit("demo.sleep", { ms: 600_000 });
  await pod.reaches(id, "running");
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "running");
  await page.context().clearCookies();
  await press(page, "Cancel");
  await page.getByText("The last action was not performed").waitFor();
  await look(page, "signed-out", []);
  assert.equal((await pod.job(id)).state, "running");
  await page.getByLabel("Token").fill(people.operator.token);
  await page.keyboard.press("Enter");
  await state(page, "running");
  await page.context().clearCookies();
  await page.reload();
  await page.getByLabel("Token").waitFor();
  assert.equal(await page.getByText("The last action was not performed").count(), 0, "the message is shown once");
  await pod.api("POST", `/admin/workers/jobs/${id}/force-cancel`);
}, { expected: [/status of 401/] });
