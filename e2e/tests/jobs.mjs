import assert from "node:assert/strict";
import { press, says, state, stay } from "../lib/acts.mjs";
import { until } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

scene("an operator kills a running job from its page and sees it cancelled", async ({ page, pod }) => {
  const id = await pod.submit("demo.sleep", { ms: 600_000 });
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "running");
  const same = await stay(page);
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.locator("#ask", { hasText: `Job ${id} is cancelled` }).waitFor();
  await page.getByRole("button", { name: "Keep" }).click();
  assert.equal((await pod.job(id)).state, "running", "to leave it changes nothing");

  await press(page, "Cancel");
  await says(page, "Cancel: done");
  await state(page, "cancelled");
  await page.locator("#h-events ~ table").getByText("job.cancelled").waitFor();
  await page.getByRole("button", { name: "Retry" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0, "what has ended cannot be cancelled");
  await same();
});

scene("a handler that ignores its context is stopped at once", async ({ page, pod }) => {
  const id = await pod.submit("demo.sleep", { ms: 4000, ignore_ctx: true });
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "running");
  await press(page, "Cancel");
  await state(page, "being cancelled");
  await press(page, "Force cancel");
  await state(page, "cancelled");
});

scene("a job that awaits approval is approved on the first page, and runs", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", { approved: true }, { needs_approval: true, subject: "budget/2025" });
  await page.goto("/ui/");
  const row = page.locator(`#approve-${id}`);
  await row.getByText("budget/2025").waitFor();
  await press(page, `Approve job ${id}`, row);
  await says(page, `Approve job ${id}: done`);
  await row.waitFor({ state: "detached" });
  await pod.reaches(id, "succeeded");
});

scene("a failed job shows the reason, and is retried from its page", async ({ page, pod }) => {
  const id = await pod.submit("demo.fail", { message: "the disk is full" });
  await pod.reaches(id, "failed");
  await page.goto(`/ui/jobs/${id}`);
  await page.locator(".failure pre", { hasText: "the disk is full" }).waitFor();
  await press(page, "Retry");
  await says(page, "Retry: done");
  await page.locator(".facts", { hasText: /Fence, epoch\s*2, 2/ }).waitFor();
  await state(page, "failed");
  assert.equal((await pod.job(id)).epoch, 2);
});

scene("a job that does not run shows the reason, and links to the job that blocks it", async ({ page, pod }) => {
  const first = await pod.submit("demo.sleep", { ms: 600_000 }, { subject: "one at a time" });
  await pod.reaches(first, "running");
  const second = await pod.submit("demo.sleep", { ms: 1 }, { subject: "one at a time" });
  await page.goto(`/ui/jobs/${second}`);
  const why = page.locator(".waits");
  await why.getByText('Another demo.sleep is running for the subject "one at a time"').waitFor();
  await why.getByRole("link", { name: `#${first}` }).click();
  await state(page, "running");
  assert.equal(await page.locator(".waits").count(), 0, "what runs waits for nothing");
  await pod.api("POST", `/admin/workers/jobs/${first}/force-cancel`);
  await pod.reaches(second, "succeeded");

  await pod.api("PUT", "/admin/workers/lanes/closed", {});
  await pod.api("POST", "/admin/workers/lanes/closed/drain");
  const later = await pod.submit("demo.noop", {}, { lane: "closed", delay: "1h" });
  await page.goto(`/ui/jobs/${later}`);
  await why.getByText("Not due yet").waitFor();
  await why.getByText('Its lane "closed" is drained').waitFor();
  await why.getByText("trapeze undrain closed").waitFor();
  const asks = await pod.submit("demo.noop", {}, { needs_approval: true });
  await page.goto(`/ui/jobs/${asks}`);
  await why.getByText("Awaiting approval").waitFor();
  await press(page, "Approve");
  await state(page, "succeeded");
  await why.waitFor({ state: "detached" });
});

scene("several jobs are retried together, after a preview", async ({ page, pod }) => {
  const failed = await Promise.all([1, 2, 3].map((n) => pod.submit("demo.fail", {}, { subject: `bulk/${n}` })));
  for (const id of failed) await pod.reaches(id, "failed");
  const fine = await pod.submit("demo.noop", {}, { subject: "bulk/4" });
  await pod.reaches(fine, "succeeded");
  await page.goto("/ui/jobs");
  assert.equal(await page.getByRole("button", { name: /^Retry/ }).isDisabled(), true, "none is selected, nothing can be done");
  for (const id of [...failed, fine]) await page.getByLabel(`Select job ${id}`).check();
  await page.getByText("4 selected").waitFor();
  await page.getByRole("button", { name: "Retry …" }).click();
  const ask = page.locator("#ask");
  await ask.getByText("1 of the selected jobs are skipped").waitFor();
  assert.deepEqual((await ask.locator("li").allInnerTexts()).sort(), failed.map((id) => `#${id} demo.fail, failed`).sort(), "the preview names what is retried");
  await ask.getByRole("button", { name: "Retry 3 jobs" }).click();
  await says(page, "3 of 3 done");
  for (const id of failed) await until(`job ${id} is tried again`, async () => (await pod.job(id)).epoch === 2);
});

scene("several jobs are cancelled together", async ({ page, pod }) => {
  const ids = await Promise.all([1, 2].map((n) => pod.submit("demo.noop", {}, { subject: `many/${n}`, delay: "1h" })));
  await page.goto("/ui/jobs?state=open");
  for (const id of ids) await page.getByLabel(`Select job ${id}`).check();
  await page.getByRole("button", { name: "Cancel …" }).click();
  await page.getByRole("button", { name: "Cancel 2 jobs" }).click();
  await says(page, "2 of 2 done");
  for (const id of ids) await pod.reaches(id, "cancelled");
});

scene("all jobs that match a filter are cancelled by one command, after a preview", async ({ page, pod }) => {
  const ids = [];
  for (let n = 0; n < 12; n++) ids.push(await pod.submit("demo.noop", {}, { subject: "all of them", delay: "1h" }));
  const other = await pod.submit("demo.noop", {}, { subject: "not this one", delay: "1h" });
  await page.goto("/ui/jobs");
  assert.equal(await page.getByRole("button", { name: "all matching" }).count(), 0, "all jobs there are is no filter");
  await page.goto("/ui/jobs?state=open&subject=all+of+them");
  await page.getByRole("button", { name: "Cancel all matching …" }).click();
  const ask = page.locator("#ask");
  await ask.getByText("All matching jobs: unfinished, subject all of them, since 24h.").waitFor();
  assert.deepEqual(await ask.locator("li").allInnerTexts(), ids.slice(0, 10).map((id) => "#" + id), "the first of them");
  assert.equal((await pod.job(ids[0])).state, "pending", "looking changes nothing");
  await ask.getByLabel("Reason, for the audit log").fill("the wrong month");
  const sent = [];
  page.on("request", (request) => { if (request.method() === "POST") sent.push(new URL(request.url()).pathname); });
  await ask.getByRole("button", { name: "Cancel 12 jobs" }).click();
  await says(page, "Cancel: 12 jobs done");
  assert.deepEqual(sent, ["/admin/workers/jobs/cancel"], "one request, not one a job");
  for (const id of ids) await pod.reaches(id, "cancelled");
  assert.equal((await pod.job(other)).state, "pending");
  const { audit } = await pod.api("GET", "/admin/audit?action=jobs.cancel&limit=1", undefined, "admin");
  assert.equal(audit[0].reason, "the wrong month", "one deed, with its reason");
  await pod.api("POST", `/jobs/${other}/cancel`);

  await page.goto("/ui/jobs?state=cancelled&subject=all+of+them");
  assert.equal(await page.getByRole("button", { name: "Cancel all matching" }).count(), 0, "what has ended cannot be cancelled");
  await page.getByRole("button", { name: "Retry all matching …" }).click();
  await ask.getByRole("button", { name: "Keep" }).click();
  assert.equal((await pod.job(ids[0])).state, "cancelled", "to leave it changes nothing");
  await page.getByRole("button", { name: "Retry all matching …" }).click();
  await ask.getByRole("button", { name: "Retry 12 jobs" }).click();
  await says(page, "Retry: 12 jobs done");
  await until("they are tried again", async () => (await pod.job(ids[11])).epoch === 2);
});

scene("a bulk command without matching jobs shows a message", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop", {}, { subject: "all fine" });
  await pod.reaches(id, "succeeded");
  await page.goto("/ui/jobs?subject=all+fine");
  await page.getByRole("button", { name: "Cancel all matching …" }).click();
  await page.locator("#wrong", { hasText: "no job matches" }).waitFor();
});

scene("a failed job is retried with other arguments, and the reason is recorded in the audit log", async ({ page, pod }) => {
  const id = await pod.submit("demo.fail", { message: "file of 2024" });
  await pod.reaches(id, "failed");
  await page.goto(`/ui/jobs/${id}`);
  await page.getByText("Retry with other arguments").click();
  const field = page.getByLabel("Arguments, JSON");
  await field.fill('{"message": ');
  await page.locator("details.edit").getByRole("button", { name: "Retry" }).click();
  await page.locator("#wrong", { hasText: "invalid JSON" }).waitFor();
  await field.fill('{"message": "file of 2025", "n": 12345678901234567890}');
  await page.locator("details.edit").getByRole("button", { name: "Retry" }).click();
  await page.getByLabel("Reason, for the audit log").fill("das Jahr war falsch: 2025 – ✓");
  await page.keyboard.press("Enter");
  await says(page, "Retry: done");
  await page.locator(".failure pre", { hasText: "file of 2025" }).waitFor();
  await page.locator("#args", { hasText: "12345678901234567890" }).waitFor(); // no digit is rounded
  await page.goto(`/ui/audit?target=job+${id}`);
  await page.locator("tbody tr", { hasText: "job.retry" }).getByText("das Jahr war falsch: 2025 – ✓").waitFor();
}, { as: "admin" });

scene("the priority of a waiting job is changed, and an invalid priority is rejected with a message", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop", {}, { needs_approval: true });
  await page.goto(`/ui/jobs/${id}`);
  await page.getByLabel("Priority, -100 to 100").fill("77");
  await press(page, "Set priority");
  await says(page, "New priority: saved");
  await page.locator(".facts", { hasText: /Priority\s*77/ }).waitFor();
  assert.equal((await pod.job(id)).priority, 77);
  await page.getByLabel("Priority, -100 to 100").fill("101");
  await press(page, "Set priority");
  assert.equal(await page.getByLabel("Priority, -100 to 100").evaluate((field) => field.validity.rangeOverflow), true, "the browser says what is wrong");
  assert.equal((await pod.job(id)).priority, 77);
  await pod.api("POST", `/jobs/${id}/cancel`);
});

scene("an action that comes too late is rejected with a message", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop", {}, { needs_approval: true });
  await page.goto(`/ui/jobs/${id}`);
  await page.route("**/ui/jobs/*", (route) => route.abort()); // prevents updates of the page
  await pod.api("POST", `/jobs/${id}/approve`);
  await pod.reaches(id, "succeeded");
  await press(page, "Approve");
  await page.locator("#wrong", { hasText: /^✗? ?Approve: / }).waitFor();
}, { expected: [/ERR_FAILED/, /status of 409/] });

scene("jobs are found by state, kind and subject, and invalid filters are reported", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", {}, { subject: "needle/7" });
  await pod.reaches(id, "succeeded");
  await page.goto("/ui/jobs");
  await page.getByRole("checkbox", { name: "succeeded" }).check();
  await page.getByLabel("Kind").fill("demo.echo");
  await page.getByLabel("Subject", { exact: true }).fill("needle/7");
  await page.getByRole("button", { name: "Search" }).click();
  await page.locator(`#job-${id}`).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 1);
  await page.getByLabel("Subject", { exact: true }).fill("in no haystack");
  await page.getByRole("button", { name: "Search" }).click();
  await page.getByText("No jobs match").waitFor();
  assert.equal((await page.goto("/ui/jobs?state=sideways")).status(), 400);
  await page.getByText("Invalid filter").waitFor();
  assert.equal((await page.goto("/ui/jobs/999999999")).status(), 404);
  await page.getByText("Not found").waitFor();
  assert.equal((await page.goto("/ui/elsewhere")).status(), 404);
  await page.getByText("Page not found").waitFor();
}, { expected: [/status of 40[04]/] });
