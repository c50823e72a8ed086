import assert from "node:assert/strict";
import { again, press } from "../lib/acts.mjs";
import { hostile } from "../lib/hostile.mjs";
import { scene } from "../lib/scene.mjs";

// strangers returns the elements of a page that none of the dashboard's templates contains.
const strangers = (page) => page.evaluate(() => [...document.querySelectorAll("main img, main iframe, main script, main style, main link, main base, main meta, main b, main svg svg svg, [onload], [onerror], [onfocus]")].map((one) => one.outerHTML));

// calm opens a page and checks that it shows hostile texts only as text.
async function calm(page, path) {
  const answer = await page.goto("/ui/" + path);
  await page.locator("html.js main").waitFor();
  assert.ok(answer.status() < 500, `/ui/${path} is a page`);
  assert.deepEqual(await strangers(page), [], `/ui/${path} holds nothing but our own elements`);
  assert.equal(await page.locator("#ask").count(), 1, "there is one dialog");
  assert.equal(new URL(page.url()).origin, new URL(await page.evaluate(() => document.baseURI)).origin);
}

scene("hostile arguments, results, subjects, keys and errors are shown as text on every page", async ({ page, pod }) => {
  const ids = [];
  for (const text of hostile) {
    const more = { subject: text.slice(0, 200), unique_key: "x" + text.slice(0, 100) };
    const jobs = await Promise.all([
      pod.submit("demo.echo", { text, [text]: [text] }, more),
      pod.submit("demo.fail", { message: text }, { subject: "s " + text.slice(0, 150) }),
      pod.submit("demo.chain", { steps: [{ kind: "demo.fail", args: { message: text }, subject: text.slice(0, 200) }, { kind: "demo.echo", args: { text } }] }),
    ]);
    ids.push(...jobs);
  }
  for (const [i, text] of hostile.entries()) {
    const setting = { expression: "@yearly", kind: "demo.echo", args: { [text]: text }, subject: text.slice(0, 200), unique_key: "x" + text.slice(0, 100) };
    await pod.api("PUT", `/admin/workers/schedules/hostile-${i}`, setting, "admin");
    await pod.api("POST", `/admin/workers/schedules/hostile-${i}/trigger`, undefined, "admin").catch(() => {});
    await calm(page, `schedules/hostile-${i}`);
  }
  const bytes = await pod.submit("demo.fail", { message: "bytes ", bytes_b64: Buffer.from([0, 1, 7, 27, 91, 51, 49, 109, 127, 128, 255, 60, 98, 62]).toString("base64") });
  for (const id of [...ids, bytes]) await pod.reaches(id, "succeeded", "failed");

  for (const path of ["", "jobs?since=all", "failures", "kinds", "pipelines", "schedules", "lanes", "pods", "audit"]) {
    await calm(page, path);
    const read = page.waitForResponse((answer) => answer.url() === page.url());
    await again(page); // now updated by the script
    await read;
    assert.deepEqual(await strangers(page), [], `/ui/${path} that was read again holds nothing but our own elements`);
  }
  for (const id of ids.slice(0, 9)) await calm(page, `jobs/${id}`);
  for (const [i, text] of hostile.entries()) {
    await calm(page, `jobs/${ids[3 * i + 1]}`);
    const shown = await page.locator(".failure pre").innerText();
    if (!/[\u202A-\u202E\u2066-\u2069\u200B]/.test(text)) assert.equal(shown, text, "the error is shown letter by letter");
    else assert.doesNotMatch(shown, /[\u202A-\u202E\u2066-\u2069]/, "nothing turns the direction of what follows");
    await calm(page, `pipelines/${ids[3 * i + 2]}`);
  }
  await calm(page, `jobs/${bytes}`);
  for (const i of hostile.keys()) await pod.api("DELETE", `/admin/workers/schedules/hostile-${i}`, undefined, "admin");
});

scene("hostile filters and URLs are shown as text", async ({ page }) => {
  for (const [i, text] of hostile.entries()) {
    const q = encodeURIComponent(text.slice(0, 300));
    const paths = [`jobs?state=${q}`, `jobs?since=${q}`, `jobs?cursor=${q}`, `pipelines?status=${q}`, `pipelines?name=${q}`, `jobs/${q}`, q];
    for (const path of paths.filter((_, j) => (i + j) % 2)) await calm(page, path); // half of the pages for each text, and half of the texts for each page
    await calm(page, `audit?actor=${q}&target=${q}`);
    await calm(page, `jobs?subject=${q}&kind=${q}`);
    assert.equal(await page.getByLabel("Subject", { exact: true }).inputValue(), text.slice(0, 300), "the field holds what was asked for");
  }
}, { expected: [/status of 40[04]/] });

scene("hostile lane names and reasons are rejected or shown as text", async ({ page, pod }) => {
  let kept = 0;
  for (const [i, text] of hostile.entries()) {
    const tried = await Promise.allSettled([
      pod.api("PUT", `/admin/workers/lanes/${encodeURIComponent(text.slice(0, 60))}`, { slots: 1 }),
      pod.api("PUT", `/admin/workers/lanes/plain-${i}`, { slots: 1 }, "operator", { "X-Reason": encodeURI(text).slice(0, 200) }),
      pod.submit(text.slice(0, 60), {}, { lane: "default" }),
    ]);
    for (const one of tried) {
      if (one.status === "fulfilled") kept++;
      else assert.ok(one.reason.status >= 400 && one.reason.status < 500, one.reason.message);
    }
  }
  assert.ok(kept >= hostile.length);
  for (const path of ["", "lanes", "jobs", "pods", "audit"]) await calm(page, path);
  for (const name of (await pod.api("GET", "/admin/workers/lanes")).lanes.map((lane) => lane.name)) await calm(page, `jobs?lane=${encodeURIComponent(name)}`);
});

scene("hostile text in the response to a button is shown as text", async ({ page, pod }) => {
  const id = await pod.submit("demo.noop", {}, { needs_approval: true });
  await page.goto(`/ui/jobs/${id}`);
  await page.route("**/approve?epoch=*", (route) => route.fulfill({ status: 409, contentType: "application/json", body: JSON.stringify({ message: hostile[1], detail: hostile[0] }) }));
  await press(page, "Approve");
  await page.locator("#wrong", { hasText: hostile[1] }).waitFor();
  assert.deepEqual(await strangers(page), []);
  await pod.api("POST", `/jobs/${id}/cancel`);
}, { expected: [/status of 409/] });
