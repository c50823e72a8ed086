import assert from "node:assert/strict";
import { press, says, state, stay } from "../lib/acts.mjs";
import { until } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

// schedule creates a schedule that is deleted at the end of its scene.
async function schedule(pod, undo, name, setting) {
  const path = `/admin/workers/schedules/${name}`;
  await pod.api("PUT", path, { kind: "demo.echo", ...setting });
  undo(() => pod.api("DELETE", path).catch((error) => { if (error.status !== 404) throw error; }));
  return () => pod.api("GET", path);
}

scene("a schedule is added with a form that explains its expression, and fires", async ({ page, pod, undo }) => {
  undo(() => pod.api("DELETE", "/admin/workers/schedules/tick").catch(() => {}));
  await page.goto("/ui/schedules");
  const form = page.locator("#add-schedule");
  if (!(await form.evaluate((one) => one.open))) await form.locator("summary").click();
  await form.getByLabel("Expression").fill("30 2 * * *");
  await form.getByLabel("Zone").fill("Europe/Zurich");
  const preview = form.locator(".preview");
  await preview.getByText("at 02:30 every day").waitFor();
  assert.equal(await preview.locator("li").count(), 5, "the next five occurrences");
  assert.match(await preview.locator("li").first().innerText(), /, 02:30:00 (CET|CEST|GMT\+[12])$/, "as the clocks of the zone show them");
  await form.getByLabel("Expression").fill("61 2 * * *");
  await preview.getByText("61").waitFor();
  await form.getByLabel("Expression").fill("@every 1s");
  await form.getByLabel("Zone").fill("UTC");
  await preview.getByText("every second").waitFor();
  await form.getByLabel("Name").fill("tick");
  await form.getByRole("combobox", { name: "Kind", exact: true }).fill("demo.echo");
  await form.getByLabel("Arguments, JSON").fill('{"tick": 12345678901234567890}');
  await form.getByText("More").click();
  await form.getByLabel("Subject").fill("clock");
  await form.getByLabel("If the previous job is unfinished").selectOption("skip");
  const same = await stay(page);
  await form.getByRole("button", { name: "Add" }).click();
  await says(page, "New schedule: saved");
  const row = page.locator("#schedule-tick");
  const { subject, overlap, missed, priority } = await pod.api("GET", "/admin/workers/schedules/tick");
  assert.deepEqual({ subject, overlap, missed, priority }, { subject: "clock", overlap: "skip", missed: "coalesce", priority: 10 });
  await row.getByText("on", { exact: true }).waitFor();
  await until("it has fired on the page", async () => /occurrences, .*[3-9] succeeded/.test(await row.locator(".spark").getAttribute("aria-label").catch(() => "")), 20_000);
  await same();
  await press(page, "Pause schedule tick", row);
  await says(page, "Pause tick: done");
  await row.getByText("paused", { exact: true }).waitFor();
}, { expected: [/status of 422/] });

scene("a schedule is paused, resumed and triggered on its page, which links to its jobs", async ({ page, pod, undo }) => {
  const read = await schedule(pod, undo, "nightly", { expression: "30 2 * * *", zone: "Europe/Zurich", args: { from: "a schedule" } });
  await page.goto("/ui/schedules");
  await page.getByRole("link", { name: "nightly" }).click();
  await state(page, "on");
  await page.getByText("It has not fired yet.").waitFor();
  assert.equal(await page.locator("#h-next ~ .occurrences li").count(), 5);
  assert.match(await page.locator("#h-next ~ .occurrences li").first().innerText(), /02:30:00/);
  const same = await stay(page);
  await page.getByRole("button", { name: "Trigger now" }).click();
  await page.getByLabel("Reason, for the audit log").fill("the month's end");
  await page.locator("#ask-yes").click();
  await says(page, "Trigger now: done");
  const fire = page.locator("#h-occurrences ~ table tbody tr");
  await fire.getByText("manual").waitFor();
  await fire.getByText("succeeded").waitFor();
  await press(page, "Pause");
  await state(page, "paused");
  await page.getByText("None while it is paused.").waitFor();
  assert.equal((await read()).paused, true);
  await press(page, "Resume");
  await state(page, "on");
  await same();
  const { audit } = await pod.api("GET", "/admin/audit?action=schedule.trigger&limit=1", undefined, "admin");
  assert.equal(audit[0].reason, "the month's end");
  await fire.getByRole("link").click();
  await state(page, "succeeded");
  await page.locator("#args", { hasText: '"from"' }).waitFor();
});

scene("a schedule is changed: only changed settings are sent, and invalid ones are rejected with a message", async ({ page, pod, undo }) => {
  const read = await schedule(pod, undo, "weekly", { expression: "0 6 * * 1", zone: "Europe/Zurich", subject: "report", args: { secret: 1 } });
  await page.goto("/ui/schedules/weekly#edit");
  const form = page.locator("#edit form").first();
  await form.getByLabel("Expression").waitFor();
  await form.getByRole("button", { name: "Save" }).click();
  await page.locator("#wrong", { hasText: "nothing changed" }).waitFor();
  await form.getByLabel("Expression").fill("0 6 * * mun");
  await form.locator(".preview.wrong").waitFor();
  await form.getByRole("button", { name: "Save" }).click();
  await page.locator("#wrong", { hasText: "Schedule weekly: " }).waitFor();
  assert.equal(await form.getByLabel("Expression").inputValue(), "0 6 * * mun", "what was typed stays");
  await form.getByLabel("Expression").fill("0 7 * * 2");
  await form.locator(".preview:not(.wrong)").getByText("07:00").first().waitFor();
  await form.getByLabel("Subject").fill("");
  await form.getByLabel("Missed occurrences").selectOption("skip");
  const sent = page.waitForRequest((request) => request.method() === "PATCH");
  await form.getByRole("button", { name: "Save" }).click();
  assert.deepEqual((await sent).postDataJSON(), { expression: "0 7 * * 2", subject: "", missed: "skip" });
  await says(page, "Schedule weekly: saved");
  await page.locator(".facts", { hasText: "0 7 * * 2" }).waitFor();
  const now = await read();
  assert.deepEqual([now.zone, now.subject, now.missed, now.overlap], ["Europe/Zurich", "", "skip", "queue"]);
}, { expected: [/status of 4\d\d/] });

scene("after a schedule is deleted, its page shows that", async ({ page, pod, undo }) => {
  await schedule(pod, undo, "gone", { expression: "@daily" });
  await page.goto("/ui/schedules/gone");
  await page.locator("#edit summary").click();
  await press(page, "Delete");
  await page.getByRole("heading", { name: "Schedules", level: 1 }).waitFor();
  assert.equal(await page.locator("#schedule-gone").count(), 0);
  assert.equal((await page.goto("/ui/schedules/gone")).status(), 404);
  await page.getByText("Schedule not found").waitFor();
}, { expected: [/status of 404/] });

scene("a viewer sees the schedules but no buttons", async ({ page, pod, undo }) => {
  await schedule(pod, undo, "looked-at", { expression: "@hourly", args: { token: "hidden" } });
  for (const path of ["schedules", "schedules/looked-at"]) {
    await page.goto("/ui/" + path);
    await page.getByText("looked-at").first().waitFor();
    assert.deepEqual(await page.locator("main button, main form, main [data-send]").count(), 0, `/ui/${path} has nothing to press`);
  }
}, { as: "viewer" });
