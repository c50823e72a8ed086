// Sample data for viewing the pages. It is the same in every run, except for times and durations.
import { assist, start, until } from "./pod.mjs";

const lanes = {
  reports: { slots: 2 },
  imports: { slots: 4, slots_per_pod: 3, max_age_s: 86_400 },
  letters: { slots: 1, requires_approval: true },
  archive: {},
};

const trace = `read flights-2025-03.csv: line 48,213: 11 columns, want 12
main.(*ingest).parse
	/srv/app/ingest/parse.go:88
main.(*ingest).run
	/srv/app/ingest/run.go:41
caused by: unexpected end of record`;

const at = (name) => `/admin/workers/schedules/${name}`;

// calendar creates schedules that fire every second.
async function calendar(pod) {
  const set = (name, setting) => pod.api("PUT", at(name), { expression: "@every 1s", ...setting }, "admin");
  await set("flights-nightly", { kind: "demo.flaky", args: { p: 0.35, ms: 300 }, lane: "imports", subject: "flights", zone: "Europe/Zurich" });
  await set("reports-hourly", { kind: "demo.sleep", args: { ms: 2500 }, lane: "reports", overlap: "skip", zone: "America/New_York" });
  await set("letters-of-the-month", { expression: "0 8 1 * *", kind: "demo.echo", lane: "letters", missed: "catch_up" });
  await pod.api("POST", at("letters-of-the-month") + "/pause", undefined, "admin", { "X-Reason": "new letterhead" });
}

// calmed waits until the schedules have fired twenty times, and then gives them realistic expressions.
async function calmed(pod) {
  await until("they have fired", async () => (await pod.api("GET", at("reports-hourly"))).last_occurrences.length >= 20, 40_000);
  await pod.api("PATCH", at("flights-nightly"), { expression: "30 2 * * *" }, "admin");
  await pod.api("PATCH", at("reports-hourly"), { expression: "0 6-18 * * 1-5" }, "admin");
}

// The kinds that the pods handle. The remote worker handles a different kind.
export const kinds = ["noop", "sleep", "fail", "flaky", "echo", "chain", "fanout", "snooze", "progress"].map((name) => "demo." + name).join(",");

// furnish fills a fresh database, and returns the IDs of the jobs to show. Besides the first pod, a second pod and a remote worker are
// running. Another worker was killed while it ran a job, which is retried.
export async function furnish(pod) {
  const other = await start("web-2", { beside: pod, env: { TRAPEZE_SLOTS: "6", TRAPEZE_KINDS: kinds } });
  const lost = await assist("gpu-0", pod, { TRAPEZE_KINDS: "demo.block", TRAPEZE_SLOTS: "2" });
  for (const [name, settings] of Object.entries(lanes)) await pod.api("PUT", `/admin/workers/lanes/${name}`, settings, "admin");
  await calendar(pod);
  const done = (id) => pod.reaches(id, "succeeded", "failed", "cancelled");
  const ids = {};
  ids.remote = await pod.submit("demo.block", {}, { lane: "imports", subject: "model/7", allow_unregistered: true });
  await pod.reaches(ids.remote, "running");
  await lost.stop();
  const worker = await assist("gpu-1", pod, { TRAPEZE_KINDS: "demo.block", TRAPEZE_SLOTS: "2" });

  // Finished jobs.
  const chain = await pod.submit("demo.chain", { steps: [
    { kind: "demo.progress", args: { steps: 3, ms: 40 }, subject: "flights/2025-02" },
    { kind: "demo.fanout", args: { n: 12, child: { kind: "demo.sleep", args: { ms: 60 } } }, subject: "flights/2025-02" },
    { kind: "demo.echo", args: { kg_co2e: "48213.75" }, subject: "flights/2025-02" },
  ] }, { lane: "imports", subject: "flights/2025-02" });
  ids.failed = await pod.submit("demo.fail", { message: trace }, { lane: "imports", subject: "flights/2025-03", max_attempts: 1 });
  await done(ids.failed);
  await pod.submit("demo.chain", { steps: [{ kind: "demo.fail", args: { message: "factor table of 2026 is not published yet" } }, { kind: "demo.echo" }] }, { lane: "imports" });
  await pod.submit("demo.fanout", { n: 4, child: { kind: "demo.flaky", args: { p: 1 } } }, { lane: "archive" }).then(done);
  for (const n of [1, 2, 3]) await done(await pod.submit("demo.echo", { page: n }, { lane: "reports", subject: `report/2025-0${n}` }));
  const killed = await pod.submit("demo.sleep", { ms: 600_000 }, { lane: "archive", subject: "box/17" });
  await pod.reaches(killed, "running");
  await pod.api("POST", `/jobs/${killed}/cancel`, {}, "operator", { "X-Reason": "wrong box" });
  await done(killed);
  await pod.api("POST", `/jobs/${ids.failed}/retry`, {}, "operator", { "X-Reason": "the file was sent again" });
  await pod.reaches(ids.failed, "failed");
  await until("the first pipeline is over", async () => (await pod.api("GET", `/pipelines/${chain}`)).status === "succeeded");

  await calmed(pod);

  // Running jobs.
  ids.pipeline = await pod.submit("demo.chain", { steps: [
    { kind: "demo.echo", args: { rows: 48213 }, subject: "flights/2025-04" },
    { kind: "demo.fanout", args: { n: 3, child: { kind: "demo.sleep", args: { ms: 900_000 } } }, lane: "archive", subject: "flights/2025-04" },
    { kind: "demo.echo", args: { total: true }, subject: "flights/2025-04" },
  ] }, { lane: "imports", subject: "flights/2025-04" });
  ids.running = await pod.submit("demo.progress", { steps: 4, ms: 150_000 }, { lane: "imports", subject: "flights/2025-05" });
  for (const n of [4, 5]) await pod.reaches(await pod.submit("demo.sleep", { ms: 900_000 }, { lane: "reports", subject: `report/2025-0${n}` }), "running");
  await pod.reaches(ids.running, "running");
  await until("the second worker has it", async () => { const job = await pod.job(ids.remote); return job.state === "running" && job.fence > 1; });
  await until("the branches run", async () => (await pod.api("GET", `/jobs?state=running&lane=archive&pipeline=${ids.pipeline}`)).jobs.length === 3);

  // Waiting jobs, with different reasons.
  await pod.api("POST", "/admin/workers/lanes/archive/drain", {}, "admin", { "X-Reason": "moving to new disks" });
  for (const n of [6, 7, 8]) ids.waits = await pod.submit("demo.sleep", { ms: 900_000 }, { lane: "reports", subject: `report/2025-0${n}` });
  await pod.submit("demo.noop", {}, { lane: "imports", subject: "flights/2025-06", delay: "3h" });
  for (const n of ["2025", "2026"]) await pod.submit("demo.noop", {}, { lane: "letters", subject: `budget/${n}` });
  await pod.submit("demo.snooze", { times: 5, delay_ms: 600_000 }, { lane: "imports", subject: "gpu" });

  // Entries for the audit log.
  await pod.api("POST", "/admin/workers/pause", {}, "operator", { "X-Reason": "a look at the load" });
  await pod.api("POST", "/admin/workers/resume");
  await pod.api("POST", "/admin/workers/lanes/reports/drain", {}, "viewer").catch(() => {});
  await pod.submitWaiting("demo.echo", { box: 18 }, { lane: "archive" });
  ids.chain = chain;
  return { ids, helpers: [other, worker] };
}
