import assert from "node:assert/strict";
import { again } from "../lib/acts.mjs";
import { people } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

const refused = [/status of 401/];

scene("a token logs in, and logging out ends it", async ({ page }) => {
  await page.goto("/ui/jobs?state=failed");
  await page.getByLabel("Token").fill("no-such-token-anywhere");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Unknown or expired token").waitFor();

  await page.getByLabel("Token").fill(people.operator.token);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  assert.equal(new URL(page.url()).search, "?state=failed", "what was asked for is shown, also after a mistyped token");
  assert.equal(await page.locator(".who").innerText(), "olga", "it says who is there");
  assert.equal(await page.evaluate(() => document.cookie), "", "no script sees the session");

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  await page.goto("/ui/lanes");
  await page.getByLabel("Token").waitFor();
}, { as: null, expected: refused });

for (const next of ["//evil.example/", "https://evil.example/", "/\\\\evil.example", "../../../", "javascript:alert(1)"]) {
  scene(`a login with next=${next} redirects to the first page`, async ({ page, pod }) => {
    await page.goto("/ui/login?next=" + encodeURIComponent(next));
    assert.equal(await page.locator("input[name=next]").count(), 0, "the form does not hold it");
    await page.evaluate((next) => {
      document.forms[0].append(Object.assign(document.createElement("input"), { type: "hidden", name: "next", value: next }));
    }, next);
    await page.getByLabel("Token").fill(people.operator.token);
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Now", level: 1 }).waitFor();
    assert.equal(page.url(), pod.url + "/ui/");
  }, { as: null });
}

scene("an open page asks for a token again when its session ends", async ({ page }) => {
  await page.goto("/ui/jobs");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  await page.context().clearCookies();
  await again(page);
  await page.getByLabel("Token").waitFor();
}, { expected: refused });

scene("a viewer is shown no button that would fail, and the API rejects the action", async ({ page, pod }) => {
  const running = await pod.submit("demo.sleep", { ms: 600_000 });
  const waits = await pod.submit("demo.noop", {}, { needs_approval: true });
  const failed = await pod.submit("demo.fail");
  await pod.reaches(running, "running");
  await pod.reaches(failed, "failed");
  for (const path of ["", "pipelines", "jobs", "jobs?kind=demo.fail", `jobs/${running}`, `jobs/${waits}`, `jobs/${failed}`, "lanes", "pods"]) {
    await page.goto("/ui/" + path);
    await page.locator("main h1").waitFor();
    const buttons = await page.locator("main :is(button:visible, [data-send], [data-form], [data-bulk], [data-many], input[type=checkbox]:not([name=state]))").allInnerTexts();
    assert.deepEqual(buttons.filter((text) => !/^(Filter$|Search$|Fold all|Copy)/.test(text)), [], `/ui/${path} has nothing to press`);
  }
  assert.equal(await page.getByRole("link", { name: "Audit" }).count(), 0, "the audit is not for him");
  for (const [method, path] of [["POST", `jobs/${running}/cancel`], ["POST", `jobs/${waits}/approve`], ["POST", `jobs/${failed}/retry`], ["POST", "admin/workers/pause"]]) {
    const status = await page.evaluate(async ([method, path]) => (await fetch("/" + path, { method, headers: { "Content-Type": "application/json" }, body: "{}" })).status, [method, path]);
    assert.equal(status, 403, `${method} ${path}`);
  }
  assert.equal((await page.goto("/ui/audit")).status(), 403, "nor by its address");
  await page.getByRole("heading", { name: "Permission denied" }).waitFor();
  await pod.api("POST", `/admin/workers/jobs/${running}/force-cancel`);
  await pod.api("POST", `/jobs/${waits}/cancel`);
}, { as: "viewer", expected: [/status of 403/] });

scene("a submitter sees only their own jobs", async ({ page, pod }) => {
  const own = await pod.submit("demo.noop", {}, { subject: "own" }, "submitter");
  const other = await pod.submit("demo.noop", {}, { subject: "somebody else's" });
  await page.goto("/ui/jobs");
  await page.locator(`#job-${own}`).waitFor();
  assert.equal(await page.locator(`#job-${other}`).count(), 0, "the list leaves it out");
  assert.equal((await page.goto(`/ui/jobs/${other}`)).status(), 404, "its page does not exist for him");
  assert.equal((await page.goto(`/ui/jobs/${own}`)).status(), 200);
  await page.getByText("by sam").waitFor();
}, { as: "submitter", expected: [/status of 404/] });
