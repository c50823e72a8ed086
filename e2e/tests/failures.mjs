import assert from "node:assert/strict";
import { says } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { until } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

scene("failures are grouped by error, and one button retries exactly the jobs of a group", async ({ page, pod }) => {
  const ids = [];
  for (const n of [41, 42, 43]) ids.push(await pod.submit("demo.fail", { message: `ledger ${n} is "closed"` }, { subject: `ledger/${n}` }));
  const other = await pod.submit("demo.fail", { message: "the ledger is missing" });
  for (const id of [...ids, other]) await pod.reaches(id, "failed");
  await page.goto("/ui/");
  await page.getByRole("link", { name: "Failures", exact: true }).click();
  const row = page.locator("tbody tr", { hasText: 'ledger # is "…"' });
  assert.equal(await row.locator("[data-l=Jobs]").innerText(), "3");
  assert.match(await row.locator(".bars").getAttribute("aria-label"), /^At most 3 in 1h 00m; .* 3$/);

  await page.route("**/ui/failures*", (route) => route.abort()); // prevents updates of the page
  const later = await pod.submit("demo.fail", { message: 'ledger 44 is "closed"' });
  await pod.reaches(later, "failed");
  await row.getByRole("button", { name: "Retry" }).click();
  const ask = page.locator("#ask");
  await ask.getByText('demo.fail: ledger # is "…"').waitFor();
  assert.deepEqual((await ask.locator("li").allInnerTexts()).sort(), ids.map((id) => "#" + id).sort(), "the jobs that the page showed");
  await ask.getByRole("button", { name: "Retry 3 jobs" }).click();
  await says(page, "Retry: 3 jobs done");
  for (const id of ids) await until(`job ${id} is tried again`, async () => (await pod.job(id)).epoch === 2);
  assert.equal((await pod.job(later)).epoch, 1, "it failed after the page was read");
  await row.getByRole("button", { name: "Retry" }).click();
  await page.locator("#wrong", { hasText: "changed since you read it" }).waitFor();

  await page.unroute("**/ui/failures*");
  await page.goto("/ui/failures?kind=demo.fail");
  await row.getByRole("link").click();
  await page.getByRole("heading", { name: "demo.fail: 4 failures" }).waitFor();
  await page.locator(`#job-${later}`, { hasText: 'ledger 44 is "closed"' }).getByRole("link").click();
  await page.getByRole("link", { name: "failures with this error" }).click();
  await page.getByRole("heading", { name: "demo.fail: 4 failures" }).waitFor();
  await look(page, "failure", []);
  await page.getByRole("link", { name: "All failures" }).click();
  await row.waitFor();
  await look(page, "failures-list", []);
}, { expected: [/ERR_FAILED/, /status of 409/] });

scene("a submitter sees no failures of others", async ({ page, pod }) => {
  await pod.reaches(await pod.submit("demo.fail", { message: "not for everyone" }), "failed");
  await page.goto("/ui/failures");
  await page.getByText("No job failed in this period.").waitFor();
  assert.equal(await page.getByText("not for everyone").count(), 0);
}, { as: "submitter" });

scene("a job's page shows the error and the stack of each attempt", async ({ page, pod }) => {
  const id = await pod.submit("demo.panic", { where: "handler" }, { max_attempts: 2 });
  await pod.reaches(id, "failed");
  await page.goto(`/ui/jobs/${id}`);
  const attempts = page.locator("section[aria-labelledby=h-attempts] tbody tr");
  assert.equal(await attempts.count(), 2);
  for (const one of await attempts.all()) {
    await one.getByText("panic: panic on request").first().click();
    await one.locator("pre", { hasText: /goroutine \d+/ }).waitFor();
  }
  await look(page, "job-attempts", []);
});
