import assert from "node:assert/strict";
import { says, state } from "../lib/acts.mjs";
import { scene } from "../lib/scene.mjs";

// focused describes the focused element, and reports whether its focus is visible.
const focused = (page) => page.evaluate(() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  const card = one.querySelector?.(".card"); // a box in the drawing has its own outline
  return {
    is: one.tagName, text: (one.innerText || one.getAttribute("aria-label") || one.labels?.[0]?.innerText || one.textContent || "").trim(),
    ring: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5) || (card && parseFloat(getComputedStyle(card).strokeWidth) >= 3),
    there: box.width > 0 && box.bottom > 0 && box.top < innerHeight,
  };
});

// tabTo presses Tab until the wanted element has the focus, and checks that the focus is always visible.
async function tabTo(page, text, most = 60) {
  const passed = [];
  for (let i = 0; i < most; i++) {
    await page.keyboard.press("Tab");
    const at = await focused(page);
    if (at.is === "BODY") continue; // wrapped around the page
    passed.push(at.text);
    assert.ok(at.ring, `the focus on ${at.is} ${JSON.stringify(at.text)} can be seen`);
    assert.ok(at.there, `${at.is} ${JSON.stringify(at.text)} is within what is shown`);
    if (text.test(at.text)) return passed;
  }
  throw new Error(`${text} was not reached by Tab: ${passed.join(" · ")}`);
}

scene("a job is found and killed with the keyboard alone", async ({ page, pod }) => {
  const id = await pod.submit("demo.sleep", { ms: 600_000 }, { subject: "keyboard" });
  await pod.reaches(id, "running");
  await page.goto("/ui/");
  await page.keyboard.press("Tab");
  assert.equal((await focused(page)).text, "Skip to content");
  await tabTo(page, /^Jobs$/);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  await tabTo(page, new RegExp(`#${id}$`));
  await page.keyboard.press("Enter");
  await state(page, "running");
  await tabTo(page, /^Cancel$/);
  await page.keyboard.press("Enter");
  assert.equal((await focused(page)).text, "Keep", "the dialog begins with what does nothing");
  await page.keyboard.press("Escape");
  await page.locator("#ask[open]").waitFor({ state: "detached" });
  assert.equal((await focused(page)).text, "Cancel", "and gives the focus back");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal((await focused(page)).text, "Cancel");
  await page.keyboard.press("Enter");
  await says(page, "Cancel: done");
  await state(page, "cancelled");
});

scene("the skip link skips the navigation", async ({ page }) => {
  await page.goto("/ui/jobs");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => Boolean(document.activeElement.closest("main"))), true);
});

scene("updates of the page do not disturb the user's input", async ({ page, pod }) => {
  await page.goto("/ui/jobs");
  await page.getByLabel("Subject", { exact: true }).fill("half typ");
  await page.getByLabel("Subject", { exact: true }).focus();
  const id = await pod.submit("demo.noop", {}, { subject: "something else" });
  await page.locator(`#job-${id}`).waitFor();
  assert.equal(await page.getByLabel("Subject", { exact: true }).inputValue(), "half typ");
  assert.equal(await page.evaluate(() => document.activeElement.name), "subject");
  await page.getByLabel(`Select job ${id}`).check();
  const next = await pod.submit("demo.noop");
  await page.locator(`#job-${next}`).waitFor();
  assert.equal(await page.getByLabel(`Select job ${id}`).isChecked(), true, "the selection is kept");
});

scene("a pipeline's drawing can be navigated with the keyboard", async ({ page, pod }) => {
  const id = await pod.submit("demo.chain", { steps: [{ kind: "demo.noop" }, { kind: "demo.echo" }] });
  await page.goto(`/ui/pipelines/${id}`);
  await state(page, "succeeded");
  await tabTo(page, /^demo\.echo/);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: /demo\.echo/, level: 1 }).waitFor();
});
