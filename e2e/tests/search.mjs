import assert from "node:assert/strict";
import { press, says, state } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { scene } from "../lib/scene.mjs";

const rows = (page) => page.locator("tbody tr").evaluateAll((all) => all.map((row) => row.id.replace("job-", "")).sort());

const box = (page, name) => page.getByRole("checkbox", { name, exact: true });

scene("jobs are found by text, args and error, in several states, by the address of the page", async ({ page, pod }) => {
  const waits = await pod.submit("demo.noop", { user: { id: 7 } }, { subject: "haystack/1", delay: "1h" }, "admin");
  const failed = await pod.submit("demo.fail", { message: "the needle is blunt", user: { id: 7 } }, { subject: "haystack/2" }, "admin");
  const done = await pod.submit("demo.noop", { user: { id: 7 } }, { subject: "haystack/3" }, "admin");
  await pod.reaches(failed, "failed");
  await pod.reaches(done, "succeeded");
  await page.goto("/ui/jobs");
  const find = async (text) => {
    await page.getByRole("searchbox", { name: "Search" }).fill(text);
    await page.getByRole("button", { name: "Search" }).click();
    await page.waitForURL((url) => url.searchParams.get("search") === text);
  };
  await find("haystack");
  assert.deepEqual(await rows(page), [waits, failed, done].sort());
  await box(page, "pending").check();
  await box(page, "failed").check();
  await find("haystack");
  assert.deepEqual(await rows(page), [waits, failed].sort());
  await page.reload(); // the address contains the search and the states
  assert.deepEqual(await rows(page), [waits, failed].sort());
  assert.equal(await box(page, "pending").isChecked() && await box(page, "failed").isChecked(), true);
  await look(page, "search", []);
  await find("args.user.id=7 haystack");
  assert.deepEqual(await rows(page), [waits, failed].sort());
  await find("needle is");
  assert.deepEqual(await rows(page), [failed]);
  await page.goto(`/ui/jobs?search=${done}`);
  assert.deepEqual(await rows(page), [done]);
}, { as: "admin" });

scene("a visitor without jobs:args cannot search args", async ({ page, pod }) => {
  await page.goto("/ui/jobs");
  assert.doesNotMatch(await page.getByRole("searchbox", { name: "Search" }).getAttribute("placeholder"), /args/);
  assert.equal((await page.goto("/ui/jobs?search=args.user.id%3D7")).status(), 403);
  await page.getByText("jobs:args").waitFor();
}, { as: "viewer", expected: [/status of 403/] });

scene("the stack of a running handler is shown on its page, and hidden from a viewer", async ({ page, pod }) => {
  const id = await pod.submit("demo.sleep", { ms: 600_000 });
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "running");
  await page.getByRole("button", { name: "Read the stack" }).click();
  await page.locator("#stack pre", { hasText: "goroutine " }).waitFor();
  await page.locator("#stack pre", { hasText: "demo" }).waitFor();
  await look(page, "stack", []);
  await pod.api("POST", `/jobs/${id}/cancel`);
  await state(page, "cancelled");
  await page.locator("#stack").waitFor({ state: "detached" });
});

scene("a pause shows since when, by whom and why", async ({ page, pod, undo }) => {
  undo(() => pod.api("POST", "/admin/workers/resume"));
  await pod.api("POST", "/admin/workers/pause", undefined, "operator", { "X-Reason": "the disk is full" });
  await page.goto("/ui/");
  await page.locator(".flag", { hasText: /Paused: no job starts .*by olga: the disk is full/ }).waitFor();
  await look(page, "paused", []);
});

scene("the next steps of a running chain get another priority", async ({ page, pod }) => {
  const { id } = await pod.api("POST", "/jobs", { kind: "demo.sleep", args: { ms: 600_000 }, chain: [{ kind: "demo.noop" }] });
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "running");
  await page.getByLabel("Next steps").fill("42");
  await press(page, "Set priority");
  await says(page, "New priority: saved");
  const [step] = JSON.parse(JSON.stringify((await pod.job(id)).planned));
  assert.equal(step.priority, 42);
  await pod.api("POST", `/jobs/${id}/cancel`);
  await pod.reaches(id, "cancelled");
});
