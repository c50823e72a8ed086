import assert from "node:assert/strict";
import { again, press, says, state, stay } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { start, until } from "../lib/pod.mjs";
import { once, scene } from "../lib/scene.mjs";

scene("a job is submitted from the latest arguments of its kind, and none of their digits is rounded", async ({ page, pod }) => {
  await pod.reaches(await pod.submit("demo.echo", { city: "Zürich", big: 12345 }, { subject: "template" }), "succeeded");
  await page.goto("/ui/jobs?kind=demo.echo");
  await page.getByRole("link", { name: "Submit a job" }).click();
  await page.getByText("Filled in from job").waitFor();
  const form = page.locator("#submit");
  assert.match(await form.getByLabel("Arguments, JSON").inputValue(), /"city": "Zürich"/);
  assert.equal(await form.getByLabel("Subject").inputValue(), "", "only the arguments are taken from another job");
  await look(page, "submit", []);
  await form.getByLabel("Arguments, JSON").fill('{"big": 12345678901234567890');
  await form.getByRole("button", { name: "Submit" }).click();
  await page.locator("#wrong", { hasText: "invalid JSON" }).waitFor();
  await form.getByLabel("Arguments, JSON").fill('{"big": 12345678901234567890}');
  await form.getByLabel("Subject").fill("by hand");
  await form.getByRole("button", { name: "Submit" }).click();
  await state(page, "succeeded");
  await page.locator("#args", { hasText: "12345678901234567890" }).waitFor();
  await page.locator(".facts", { hasText: "by hand" }).waitFor();
  await page.getByText("by ada").waitFor();
}, { as: "admin" });

scene("a job is run again with other arguments, and the rest of it is copied", async ({ page, pod }) => {
  await pod.api("PUT", "/admin/workers/lanes/copies", {});
  const id = await pod.submit("demo.echo", { year: 2024 }, { subject: "copy/1", lane: "copies", priority: 33 });
  await pod.reaches(id, "succeeded");
  await page.goto(`/ui/jobs/${id}`);
  await page.getByRole("link", { name: "Submit a copy" }).click();
  const form = page.locator("#submit");
  await form.getByLabel("Arguments, JSON").fill('{"year": 2025}');
  await form.getByRole("button", { name: "Submit" }).click();
  await page.waitForURL((url) => /\/ui\/jobs\/\d+$/.test(url.pathname) && !url.pathname.endsWith("/" + id));
  const copy = await pod.job(page.url().split("/").at(-1));
  assert.deepEqual([copy.kind, copy.lane, copy.subject, copy.priority], ["demo.echo", "copies", "copy/1", 33]);
}, { as: "admin" });

scene("without the permission to see arguments, none are filled in", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", { code: "47110815" }, {}, "admin");
  await page.goto(`/ui/jobs/new?like=${id}`);
  await page.getByText("are hidden from you").waitFor();
  assert.equal((await page.locator("#submit").getByLabel("Arguments, JSON").inputValue()).trim(), "{}");
});

scene("the dialog of an approval shows the arguments and the submitter, and a rejection records its reason", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", { amount: "1200.50" }, { needs_approval: true, subject: "invoice/7" }, "submitter");
  await page.goto("/ui/");
  const row = page.locator(`#approve-${id}`);
  await row.getByRole("button", { name: `Approve job ${id}` }).click();
  const box = page.locator("#ask");
  await box.getByText('"amount": "1200.50"').waitFor();
  await box.getByText("by sam").waitFor();
  await box.getByText("invoice/7").waitFor();
  await look(page, "approval", []);
  await page.keyboard.press("Escape");
  assert.equal((await pod.job(id)).state, "awaiting_approval", "looking changes nothing");
  await row.getByRole("button", { name: `Reject job ${id}` }).click();
  await box.getByLabel("Reason, for the audit log").fill("too expensive");
  await box.getByRole("button", { name: `Reject job ${id}` }).click();
  await says(page, `Reject job ${id}: done`);
  await row.waitFor({ state: "detached" });
  await pod.reaches(id, "cancelled");
  const { audit } = await pod.api("GET", `/admin/audit?target=job+${id}&limit=1`, undefined, "admin");
  assert.deepEqual([audit[0].action, audit[0].reason], ["job.cancel", "too expensive"]);
}, { as: "admin" });

scene("the dialog of an approval states which arguments are hidden", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", { amount: "1200.50" }, { needs_approval: true }, "submitter");
  await page.goto(`/ui/jobs/${id}`);
  await page.getByRole("button", { name: "Approve" }).click();
  const box = page.locator("#ask");
  await box.getByText("hidden from you").waitFor();
  assert.equal(await box.getByText("1200.50").count(), 0);
  await box.getByRole("button", { name: "Approve" }).click();
  await state(page, "succeeded");
});

const strict = once(() => start("strict", { env: { TRAPEZE_FOUR_EYES: "true" } }));

scene("with four eyes, a visitor approves the jobs of others only", async ({ page, pod }) => {
  const own = await pod.submit("demo.noop", {}, { needs_approval: true }, "operator");
  const other = await pod.submit("demo.noop", {}, { needs_approval: true }, "admin");
  await page.goto("/ui/");
  await page.locator(`#approve-${own}`).getByText("another person must approve it").waitFor();
  assert.equal(await page.getByRole("button", { name: `Approve job ${own}`, exact: true }).count(), 0);
  await assert.rejects(pod.api("POST", `/jobs/${own}/approve`), { status: 403 }, "nor through the API");
  await press(page, `Approve job ${other}`);
  await pod.reaches(other, "succeeded");
}, { on: strict });

scene("a selection survives updates and other pages, and shift-click selects a range", async ({ page, pod }) => {
  const ids = [];
  for (let n = 0; n < 55; n++) ids.push(await pod.submit("demo.noop", {}, { subject: "picked", delay: "1h" }));
  await page.goto("/ui/jobs?state=open&subject=picked");
  const shown = async () => Promise.all((await page.locator("input[name=pick]").all()).map((box) => box.getAttribute("value")));
  const first = await shown();
  assert.equal(first.length, 50);
  await page.getByLabel(`Select job ${first[9]}`).check();
  await page.getByLabel(`Select job ${first[12]}`).click({ modifiers: ["Shift"] });
  await page.getByText("4 selected").waitFor();
  const same = await stay(page);
  const late = await pod.submit("demo.noop", {}, { subject: "picked", delay: "1h" });
  await page.locator(`#job-${late}`).waitFor();
  await page.getByText("4 selected").waitFor();
  for (const id of first.slice(9, 13)) assert.equal(await page.getByLabel(`Select job ${id}`).isChecked(), true);
  await same();
  await page.getByRole("link", { name: "Next page" }).click();
  await page.getByText("4 selected, 4 not on this page").waitFor();
  const second = await shown();
  await page.getByLabel("Select all jobs on this page").check();
  await page.getByText(`${4 + second.length} selected`).waitFor();
  await page.getByLabel(`Select job ${second[0]}`).uncheck();
  await page.getByRole("link", { name: "First page" }).click();
  const picked = [...first.slice(9, 13), ...second.slice(1)];
  await page.getByText(`${picked.length} selected, ${second.length - 1} not on this page`).waitFor();
  await page.getByRole("button", { name: "Cancel …" }).click();
  await page.getByRole("button", { name: `Cancel ${picked.length} jobs` }).click();
  await says(page, `${picked.length} of ${picked.length} done`);
  await page.getByText("None selected").waitFor();
  for (const id of picked) await pod.reaches(id, "cancelled");
  assert.equal((await pod.job(second[0])).state, "pending");
  await page.getByLabel(`Select job ${late}`).check();
  await page.getByRole("button", { name: "Clear selection" }).click();
  await page.getByText("None selected").waitFor();
  await pod.api("POST", "/admin/workers/jobs/cancel", { filter: { subject: "picked" } });
});

scene("updates are paused to read a list, and resumed", async ({ page, pod }) => {
  await page.goto("/ui/jobs");
  await page.locator("#pulse.live").waitFor();
  await page.getByRole("button", { name: "Pause updates" }).click();
  await page.locator("#pulse", { hasText: "paused" }).waitFor();
  const read = [];
  page.on("request", (request) => { if (new URL(request.url()).pathname === "/ui/jobs") read.push(request.url()); });
  const id = await pod.submit("demo.noop", {}, { subject: "while it is paused" });
  const other = await page.context().newPage();
  await other.goto("/ui/jobs");
  await other.locator("#pulse.live").waitFor();
  const next = await pod.submit("demo.noop", {}, { subject: "while one page is paused" });
  await other.locator(`#job-${next}`).waitFor(); // a page that is not paused has been updated
  await again(page);
  assert.deepEqual(read, [], "a paused page is not read again");
  assert.equal(await page.locator(`#job-${id}`).count(), 0);
  await page.getByRole("button", { name: "Resume updates" }).click();
  await page.locator(`#job-${id}`).waitFor();
});

scene("the failed children of a partial pipeline are retried with one button", async ({ page, pod }) => {
  const id = await until("some children have failed, and some have not", async () => {
    const made = await pod.submit("demo.fanout", { n: 8, child: { kind: "demo.flaky", args: { p: 0.5 } } });
    await pod.reaches(made, "succeeded", "failed");
    return (await pod.api("GET", `/pipelines/${made}`)).status === "partial" && made;
  });
  const failed = (await pod.api("GET", `/jobs?pipeline=${id}&state=failed`)).jobs.map((job) => job.id);
  await page.goto(`/ui/pipelines/${id}`);
  await press(page, "Retry failed children");
  await says(page, "Retry failed children: done");
  for (const child of failed) await until(`child ${child} is tried again`, async () => (await pod.job(child)).epoch === 2);
});
