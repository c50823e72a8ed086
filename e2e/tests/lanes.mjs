import assert from "node:assert/strict";
import { again, press, says, state } from "../lib/acts.mjs";
import { keep, scene } from "../lib/scene.mjs";
import { start, until } from "../lib/pod.mjs";

// lane creates a lane that no other scene uses.
async function lane(pod, name, settings = {}) {
  await pod.api("PUT", `/admin/workers/lanes/${name}`, settings);
  return name;
}

scene("while a lane is drained, submitted jobs wait and show the reason, and they run when it is undrained", async ({ page, pod }) => {
  const name = await lane(pod, "invoices");
  await page.goto("/ui/lanes");
  const row = page.locator(`#lane-${name}`);
  await press(page, `Drain lane ${name}`, row);
  await says(page, `Drain lane ${name}: done`);
  await row.getByText("drained").waitFor();

  await page.goto("/ui/");
  const id = await pod.submitWaiting("demo.echo", { paid: true }, { lane: name });
  const waiting = page.locator("#h-waiting ~ table tbody tr", { hasText: name });
  await waiting.getByText("The lane is drained").waitFor();
  assert.equal((await pod.job(id)).state, "pending");

  await waiting.getByRole("link", { name: `#${id}` }).click();
  await state(page, "pending");
  const lanes = await page.context().newPage();
  await lanes.goto("/ui/lanes");
  await press(lanes, `Undrain lane ${name}`);
  await says(lanes, `Undrain lane ${name}: done`);
  await lanes.locator(`#lane-${name}`).getByText("open").waitFor();
  await state(page, "succeeded");
});

scene("a lane's slots are changed, and the new number takes effect", async ({ page, pod }) => {
  const name = await lane(pod, "letters", { slots: 1 });
  const ids = await Promise.all([1, 2].map(() => pod.submit("demo.sleep", { ms: 600_000 }, { lane: name })));
  const running = async () => (await Promise.all(ids.map((id) => pod.job(id)))).filter((job) => job.state === "running").length;
  await until("one runs", async () => (await running()) === 1);
  await page.goto("/ui/");
  await again(page);
  await page.locator("#h-waiting ~ table tbody tr", { hasText: name }).getByText("All slots of the lane are in use").waitFor();

  await page.locator(`#lane-${name}`).getByRole("link", { name }).click();
  const form = page.locator(`#edit-${name}`);
  await form.getByLabel("Slots, all pods").fill("2");
  await form.getByRole("button", { name: "Save" }).click();
  await says(page, `Lane ${name}: saved`);
  await page.locator(`#lane-${name} [data-l=Slots]`, { hasText: "2" }).waitFor();
  await until("both run", async () => (await running()) === 2);
  for (const id of ids) await pod.api("POST", `/admin/workers/jobs/${id}/force-cancel`);
});

scene("an invalid setting is rejected with a message, and stays in the field", async ({ page, pod }) => {
  const name = await lane(pod, "stamps");
  await page.goto("/ui/lanes");
  await again(page);
  const form = page.locator(`#edit-${name}`);
  await form.locator("summary").click();
  await form.getByLabel("Slots, all pods").fill("2000000000");
  await form.getByRole("button", { name: "Save" }).click();
  await page.locator("#wrong", { hasText: `Lane ${name}: ` }).waitFor();
  assert.equal(await form.getByLabel("Slots, all pods").inputValue(), "2000000000");
}, { expected: [/status of 4\d\d/] });

scene("a lane is added by name, and runs jobs", async ({ page, pod }) => {
  await page.goto("/ui/lanes");
  await page.getByText("Add a lane").click();
  const form = page.locator("#add-lane form");
  await form.getByLabel("Name, or a template such as tenant/*").fill("parcels");
  await form.getByLabel("Slots, all pods").fill("3");
  await form.getByRole("button", { name: "Add" }).click();
  await says(page, "New lane: saved");
  await page.locator("#lane-parcels [data-l=Slots]", { hasText: "3" }).waitFor();
  await pod.reaches(await pod.submit("demo.noop", {}, { lane: "parcels" }), "succeeded");
});

scene("kinds are assigned to a lane on its page, and later jobs go there", async ({ page, pod, undo }) => {
  const name = await lane(pod, "hashes");
  for (const one of [name, "hashes-two"]) undo(() => pod.api("PATCH", `/admin/workers/lanes/${one}`, { kinds: [] }).catch(() => {}));
  await page.goto(`/ui/lanes#edit-${name}`);
  const form = page.locator(`#edit-${name}`);
  await form.getByLabel("Kinds, one per line").fill("demo.hash\ndemo.flaky\n");
  await form.getByRole("button", { name: "Save" }).click();
  await says(page, `Lane ${name}: saved`);
  await page.locator(`#lane-${name} [data-l=Kinds]`, { hasText: "demo.flaky, demo.hash" }).waitFor();
  const id = await pod.submit("demo.flaky", { p: 0 });
  assert.equal((await pod.job(id)).lane, name);
  const other = await lane(pod, "hashes-two");
  const second = page.locator(`#edit-${other}`);
  await second.locator("summary").click();
  await second.getByLabel("Kinds, one per line").fill("demo.hash");
  await second.getByRole("button", { name: "Save" }).click();
  await says(page, `Lane ${other}: saved`);
  await page.locator(`#lane-${other} [data-l=Kinds]`, { hasText: /^demo.hash$/ }).waitFor();
  await page.locator(`#lane-${name} [data-l=Kinds]`, { hasText: /^demo.flaky$/ }).waitFor(); // a kind belongs to only one lane
});

scene("a lane is deleted, and its waiting jobs and its kinds move to another", async ({ page, pod }) => {
  const name = await lane(pod, "closing", { kinds: ["demo.table"] });
  const to = await lane(pod, "heirs");
  await pod.api("POST", `/admin/workers/lanes/${name}/drain`);
  const id = await pod.submitWaiting("demo.noop", {}, { lane: name, delay: "1h" });
  await page.goto(`/ui/lanes#edit-${name}`);
  const form = page.locator(`#edit-${name}`);
  await press(page, "Delete", form);
  await page.locator("#wrong", { hasText: `Delete lane ${name}: ` }).waitFor(); // the lane still has a job
  await form.getByLabel("Move its jobs and kinds to").selectOption(to);
  await form.getByRole("button", { name: "Delete" }).click();
  await page.locator("#ask", { hasText: `Lane ${name} will be deleted` }).waitFor();
  await page.getByLabel("Reason, for the audit").fill("merged");
  await page.locator("#ask-yes").click();
  await says(page, `Delete lane ${name}: done`);
  await page.locator(`#lane-${name}`).waitFor({ state: "detached" });
  assert.equal((await pod.job(id)).lane, to);
  await page.locator(`#lane-${to} [data-l=Kinds]`, { hasText: "demo.table" }).waitFor();
  const { audit } = await pod.api("GET", "/admin/audit?action=lane.delete&limit=1", undefined, "admin");
  assert.equal(audit[0].reason, "merged");
  await pod.api("POST", `/jobs/${id}/cancel`);
}, { expected: [/status of 409/] });

scene("the first page shows a pause, and jobs continue after unpausing", async ({ page, pod, undo }) => {
  undo(() => pod.api("POST", "/admin/workers/resume"));
  await page.goto("/ui/");
  await press(page, "Pause");
  await page.locator(".flag.bad", { hasText: "Paused" }).waitFor();
  const id = await pod.submitWaiting("demo.noop");
  await page.locator("#h-waiting ~ table").getByText("The queue is paused or frozen").first().waitFor();
  assert.equal((await pod.job(id)).state, "pending");
  await press(page, "Resume");
  await page.getByText("Queue open").waitFor();
  await pod.reaches(id, "succeeded");
});

scene("a unfreeze ends a freeze, and a lane that was already drained stays drained", async ({ page, pod, undo }) => {
  undo(() => pod.api("POST", "/admin/workers/unfreeze"));
  const name = await lane(pod, "archive");
  await pod.api("POST", `/admin/workers/lanes/${name}/drain`);
  await page.goto("/ui/");
  await press(page, "Freeze");
  await page.locator(".flag.bad", { hasText: "Frozen for maintenance" }).waitFor();
  await press(page, "Unfreeze");
  await page.getByText("Queue open").waitFor();
  await page.locator(`#lane-${name}`, { hasText: "drained" }).waitFor();
});

scene("a pod is drained and undrained, and another pod runs jobs meanwhile", async ({ page, pod, undo }) => {
  undo(() => pod.api("POST", "/admin/workers/pods/web-1/undrain"));
  const other = keep(await start("web-2", { beside: pod }));
  await page.goto("/ui/pods");
  const row = page.locator("tr", { hasText: "web-1" });
  await press(page, "Drain pod web-1", row);
  await row.getByText("drained").waitFor();
  await until("the other pod runs what is submitted", async () => {
    const job = await pod.reaches(await pod.submit("demo.noop"), "succeeded");
    return job.pod === other.ready.pod_id;
  });
  await press(page, "Undrain pod web-1", row);
  await row.getByText("alive").waitFor();
  await other.stop();
  await again(page);
  await page.locator("tr", { hasText: "web-2" }).getByText("left").waitFor();
});
