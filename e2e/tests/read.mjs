import assert from "node:assert/strict";
import { again, state } from "../lib/acts.mjs";
import { fits, look } from "../lib/look.mjs";
import { until } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

scene("times are local, the zone can be switched, and the choice is kept", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop");
  const job = await pod.reaches(id, "succeeded");
  const utc = job.created_at.slice(0, 19).replace("T", " ") + " UTC";
  const local = new Date(Date.parse(job.created_at) + 345 * 60_000).toISOString().slice(0, 19).replace("T", " ") + " GMT+5:45";
  await page.goto(`/ui/jobs/${id}`);
  const clock = page.locator(".facts div", { hasText: "Submitted" }).locator(".clock");
  assert.equal(await clock.innerText(), local);
  assert.match(await clock.getAttribute("title"), new RegExp(`^${utc.slice(0, 19)}.* UTC$`));
  await page.getByText("Times in Asia/Kat").waitFor();
  await page.getByRole("button", { name: "Show UTC" }).click();
  assert.equal(await clock.innerText(), utc);
  await page.reload();
  assert.equal(await clock.innerText(), utc);
  await page.getByRole("button", { name: /^Show Asia/ }).click();
  assert.equal(await clock.innerText(), local);
  await page.goto("/ui/jobs");
  const row = page.locator(`#job-${id} time`);
  assert.match(await row.getAttribute("title"), /GMT\+5:45 · .* UTC$/);
  const next = await pod.submit("demo.noop");
  await again(page);
  await page.locator(`#job-${next}`).waitFor();
  assert.match(await row.getAttribute("title"), /GMT\+5:45 · .* UTC$/, "after an update too");
  await page.goto("/ui/audit");
  await look(page, "times", []);
}, { zone: "Asia/Kathmandu" });

scene("arguments fold, and are copied and downloaded whole", async ({ page, pod }) => {
  const id = await pod.submit("demo.echo", { list: [1, { deep: "x" }], other: "y" });
  await pod.reaches(id, "succeeded");
  await page.goto(`/ui/jobs/${id}`);
  await state(page, "succeeded");
  const args = page.locator("#args"), deep = args.getByText('"deep": "x"');
  assert.equal(await deep.isVisible(), true);
  await args.locator("summary", { hasText: '"list": [' }).click();
  assert.equal(await deep.isVisible(), false);
  assert.equal(await args.getByText('"other": "y"').isVisible(), true);
  const fold = page.locator("[data-fold=args]");
  await fold.click();
  assert.match(await fold.innerText(), /^Unfold all/);
  await fold.click();
  assert.equal(await deep.isVisible(), true);
  await look(page, "json", []);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.locator("[data-copy=args]").click();
  await page.locator("[data-copy=args]", { hasText: "Copied" }).waitFor();
  assert.deepEqual(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())), { list: [1, { deep: "x" }], other: "y" });
  const download = page.waitForEvent("download");
  await page.getByRole("link", { name: "Download the result" }).click();
  assert.equal((await download).suggestedFilename(), `job-${id}-result.json`);
}, { as: "admin" });

scene("a pipeline's drawing is zoomed, its timeline shows its steps, and its children are listed", async ({ page, pod }) => {
  const steps = [{ kind: "demo.sleep", args: { ms: 300 } }, { kind: "demo.fanout", args: { n: 55, child: { kind: "demo.noop" } } }];
  for (let i = 0; i < 8; i++) steps.push({ kind: "demo.echo" });
  const id = await pod.submit("demo.chain", { steps });
  await until("it is over", async () => (await pod.api("GET", `/pipelines/${id}`)).status === "succeeded");
  await page.goto(`/ui/pipelines/${id}`);
  assert.match(await page.title(), new RegExp(`^demo\\.chain · Pipeline ${id} `));
  const tree = page.locator(".tree"), width = async () => Number(await tree.getAttribute("width"));
  const whole = await width();
  await page.getByRole("button", { name: "Fit" }).click();
  assert.ok(await page.locator(".scroll").evaluate((one) => one.scrollWidth <= one.clientWidth), "all of it is shown");
  assert.ok(await width() < whole);
  await page.reload();
  assert.ok(await width() < whole, "the zoom is kept");
  await page.getByRole("button", { name: "100 %" }).click();
  assert.equal(await width(), whole);
  await page.getByRole("button", { name: "Larger" }).click();
  assert.equal(await width(), Math.round(whole * 1.25));
  await page.getByRole("button", { name: "Smaller" }).click();
  assert.equal(await width(), whole);
  const bars = page.locator(".gantt tbody tr");
  assert.equal(await bars.count(), steps.length + 1);
  const [first, second] = await Promise.all([1, 2].map((n) => bars.nth(n).locator("rect").last().evaluate((one) => ({ x: one.x.baseVal.value, w: one.width.baseVal.value }))));
  assert.ok(second.x >= first.x + first.w - 5, "a step starts after the previous one");
  await look(page, "pipeline-timeline", []);
  await page.getByRole("link", { name: "55 children", exact: true }).click();
  await page.getByRole("heading", { name: /^Children of demo.fanout #/ }).waitFor();
  const rows = page.locator("tbody tr");
  assert.equal(await rows.count(), 50);
  await look(page, "children", []);
  await page.getByRole("link", { name: "Next page" }).click();
  await page.getByRole("link", { name: "First page" }).waitFor();
  assert.equal(await rows.count(), 5);
});

scene("shortcuts move between pages and rows, a sheet lists them, and fields and dialogs get the keys", async ({ page, pod }) => {
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push(await pod.submit("demo.noop", {}, { subject: "keys" }));
  for (const id of ids) await pod.reaches(id, "succeeded");
  const keys = async (...list) => { for (const key of list) await page.keyboard.press(key); };
  await page.goto("/ui/jobs?subject=keys");
  await keys("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).getByText("go to Pipelines").waitFor();
  assert.deepEqual(await page.locator("dialog .keys dd", { hasText: /^go to [A-Z]/ }).allInnerTexts(),
    (await page.locator("header nav a").allInnerTexts()).map((name) => `go to ${name}`), "every page has a shortcut");
  await look(page, "keys", []);
  await keys("g", "p");
  assert.match(page.url(), /jobs/, "a dialog gets the keys");
  await keys("Escape");
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  await keys("j", "j");
  assert.match(await focused(), new RegExp(`#${ids[1]}$`));
  await keys("k", "x");
  await page.locator("#picked", { hasText: "1 selected" }).waitFor();
  assert.ok(await page.getByLabel(`Select job ${ids[2]}`).isChecked());
  await keys("/");
  assert.equal(await page.evaluate(() => document.activeElement.name), "search");
  await keys("g", "p", "?", "x");
  assert.equal(await page.getByLabel("Search").inputValue(), "gp?x", "a field gets the keys");
  await page.getByLabel("Search").blur();
  await keys("Control+j", "g", "p");
  await page.waitForURL("**/ui/pipelines");
  await keys("g", "f");
  await page.waitForURL("**/ui/failures");
  await keys("g", "k");
  await page.waitForURL("**/ui/kinds");
  await keys("g", "p");
  await page.waitForURL("**/ui/pipelines");
  await keys("p");
  await page.locator("#pulse", { hasText: "paused" }).waitFor();
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await page.getByLabel("Shortcuts are on").uncheck();
  await keys("Escape", "g", "j", "?");
  assert.equal(await page.locator("dialog[open]").count(), 0, "they are off");
  assert.match(page.url(), /pipelines/);
  await page.reload();
  await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
  await page.getByLabel("Shortcuts are on").check();
  await keys("Escape", "g", "j");
  await page.waitForURL("**/ui/jobs");
});

const everywhere = ["", "pipelines", "jobs", "schedules", "lanes", "limits", "pods", "audit", "settings", "settings/roles"];

scene("no button breaks its text, and only actions that destroy something are red", async ({ page, pod, undo }) => {
  await pod.api("PUT", "/admin/workers/lanes/a-lane-with-a-long-name-indeed", { slots: 2, slots_per_pod: 1, inactivity_timeout_s: 60 }, "admin");
  undo(() => pod.api("DELETE", "/admin/workers/lanes/a-lane-with-a-long-name-indeed", undefined, "admin"));
  await pod.api("PUT", "/admin/workers/schedules/layout", { expression: "0 8 1 * *", kind: "demo.echo" }, "admin");
  undo(() => pod.api("DELETE", "/admin/workers/schedules/layout", undefined, "admin"));
  const waits = await pod.submit("demo.noop", {}, { needs_approval: true });
  undo(() => pod.api("POST", `/jobs/${waits}/cancel`, {}));
  const red = new Set();
  for (const width of [390, 768, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    for (const path of [...everywhere, `jobs/${waits}`, "schedules/layout"]) {
      await page.goto("/ui/" + path);
      await page.locator("main h1").waitFor();
      await fits(page, `/ui/${path} at ${width}`);
      const { broken, danger } = await page.evaluate(() => {
        const buttons = [...document.querySelectorAll("button, .button")].filter((one) => one.checkVisibility());
        const lines = (one) => [...one.childNodes].filter((part) => part.nodeType === 3).map((part) => {
          const range = document.createRange();
          range.selectNodeContents(part);
          return new Set([...range.getClientRects()].map((box) => box.top)).size;
        });
        return { broken: buttons.filter((one) => Math.max(...lines(one), 0) > 1).map((one) => one.textContent), danger: buttons.filter((one) => one.classList.contains("danger")).map((one) => one.firstChild.data.trim()) };
      });
      assert.deepEqual(broken, [], `/ui/${path} at ${width}`);
      danger.forEach((text) => red.add(text));
    }
  }
  assert.deepEqual([...red].filter((text) => !/^(Cancel|Reject|Force cancel|Delete|Remove|Revoke)/.test(text)), []);
}, { as: "admin", within: 120_000 });

scene("columns without content are not shown, and come back with content", async ({ page, pod, undo }) => {
  await page.goto("/ui/schedules");
  assert.equal(await page.locator("#zone-choice").isVisible(), false, "without a local zone there is no choice");
  await pod.api("PUT", "/admin/workers/lanes/columns", {}, "admin");
  undo(() => pod.api("DELETE", "/admin/workers/lanes/columns?move_to=default", undefined, "admin"));
  const bare = await pod.submit("demo.noop", {}, { lane: "columns" });
  await page.goto("/ui/jobs?lane=columns");
  await page.locator(`#job-${bare}`).waitFor();
  const subject = page.getByRole("columnheader", { name: "Subject" });
  assert.equal(await subject.isVisible(), false);
  const full = await pod.submit("demo.noop", {}, { lane: "columns", subject: "filled" });
  await page.locator(`#job-${full}`).getByText("filled").waitFor();
  assert.ok(await subject.isVisible());
  assert.equal(await page.locator("#zone-choice").isVisible(), false, "an update keeps what a script hid");
  await page.setViewportSize({ width: 390, height: 800 });
  const ids = await Promise.all([1, 2, 3].map((n) => pod.submit("demo.noop", {}, { subject: `dense/${n}` })));
  await page.goto("/ui/jobs");
  const card = await page.locator(`#job-${ids[0]}`).boundingBox();
  const box = await page.getByLabel(`Select job ${ids[0]}`).boundingBox();
  const texts = await page.locator(`#job-${ids[0]} td:not(.pick)`).evaluateAll((cells) => cells.filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right));
  assert.ok(Math.max(...texts) <= box.x, "no text is below the box");
  assert.ok(card.height < 110, `a card of a job is ${card.height} pixels high on a phone`);
});
