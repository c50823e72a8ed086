import assert from "node:assert/strict";
import { state, stay } from "../lib/acts.mjs";
import { scene } from "../lib/scene.mjs";

scene("a pipeline is watched live, from its first step to its last, without reloading the page", async ({ page, pod }) => {
  const id = await pod.submit("demo.chain", { steps: [
    { kind: "demo.progress", args: { steps: 8, ms: 400 } },
    { kind: "demo.fanout", args: { n: 6, child: { kind: "demo.sleep", args: { ms: 300 } } } },
    { kind: "demo.echo", args: { total: 42 } },
  ] });
  await page.goto(`/ui/pipelines/${id}`);
  const same = await stay(page);
  await page.locator(".tree .node.n-running .name", { hasText: "demo.progress" }).waitFor();
  await page.getByText(/^[1-8] of 8$/).first().waitFor();
  await page.locator(".tree").getByText("6 children").waitFor();
  await state(page, "succeeded");
  assert.equal(await page.locator(".tree .node.n-succeeded .name", { hasText: "demo.echo" }).count(), 1, "the last step is drawn as done");
  assert.equal(await page.locator(".tree .dashed").count(), 0, "nothing is to come");
  await same();
});

scene("a running job appears on the first page with its progress, and disappears when it ends", async ({ page, pod }) => {
  await page.goto("/ui/");
  const same = await stay(page);
  const id = await pod.submit("demo.progress", { steps: 6000, ms: 100 });
  const row = page.locator(`#run-${id}`);
  await row.getByText(/^[1-9]\d* of 6000$/).waitFor();
  await pod.api("POST", `/jobs/${id}/cancel`);
  await row.waitFor({ state: "detached" });
  await same();
});

scene("a pipeline with a failed child is partial, and names the child", async ({ page, pod }) => {
  const id = await pod.submit("demo.fanout", { n: 3, child: { kind: "demo.flaky", args: { p: 0 } }, join: { kind: "demo.fail", args: { message: "totals do not add up" } } });
  await page.goto(`/ui/pipelines/${id}`);
  await state(page, "failed");
  await page.locator(".failure", { hasText: "totals do not add up" }).waitFor();
});
