// A pod under test: a `trapeze serve` process with its embedded PostgreSQL, in a folder that is removed at the end.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const binary = process.env.TRAPEZE_BIN;
if (!binary) throw new Error("TRAPEZE_BIN names no binary: run `make e2e`");

// The users, each with a name, a token and roles. The audit log and the dashboard show the name.
export const people = {
  operator: { token: "operator-token-of-the-tests", name: "olga", roles: ["operator"] },
  viewer: { token: "viewer-token-of-the-tests", name: "vera", roles: ["viewer"] },
  submitter: { token: "submitter-token-of-the-tests", name: "sam", roles: ["submitter"] },
  admin: { token: "admin-token-of-the-tests", name: "ada", roles: ["platform_admin"] },
  worker: { token: "worker-token-of-the-tests", name: "gpu", roles: ["worker"] },
};

// until waits for a condition, and returns its value.
export async function until(what, check, within = 15_000) {
  const deadline = Date.now() + within;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`waited ${within / 1000} s in vain: ${what}`);
    await pause(50);
  }
}

// When this process exits for any reason, its pods are stopped, together with their PostgreSQL.
const alive = new Set();
process.on("exit", () => { for (const child of alive) child.kill("SIGTERM"); });
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(1));

// clean is the current environment without the variables that configure the program.
const clean = () => Object.fromEntries(Object.entries(process.env).filter(([key]) => !/^(TRAPEZE_|DATABASE_URL$|PG)/.test(key)));

// assist starts a remote worker for a pod, without waiting until it is connected.
export async function assist(name, pod, env) {
  const child = spawn(binary, ["worker", "--server", pod.url], {
    stdio: "ignore",
    env: { ...clean(), TRAPEZE_TOKEN: people.worker.token, TRAPEZE_POD_NAME: name, TRAPEZE_DEMO_HANDLERS: "true", TRAPEZE_SHUTDOWN_GRACE: "1s", ...env },
  });
  alive.add(child);
  const ended = once(child, "exit").finally(() => alive.delete(child));
  return {
    async stop() {
      child.kill("SIGKILL");
      await ended;
    },
  };
}

// start starts a pod and resolves when it is ready. Given the database of another pod, it starts no PostgreSQL.
export async function start(name, { env = {}, beside } = {}) {
  const folder = await mkdtemp(join(tmpdir(), "trapeze-e2e-"));
  await chmod(folder, 0o755); // as root, the server runs as another user that needs access to its data
  const tokens = join(folder, "tokens.json");
  await writeFile(tokens, JSON.stringify({ tokens: Object.values(people) }), { mode: 0o600 });
  const child = spawn(binary, ["serve", "--data-dir", join(folder, "data")], {
    cwd: folder,
    stdio: ["ignore", "pipe", "pipe"],
    env: {
      ...clean(), PGBIN: process.env.PGBIN ?? "", TRAPEZE_HTTP_ADDR: "127.0.0.1:0", TRAPEZE_POD_NAME: name, TRAPEZE_DEMO_HANDLERS: "true", TRAPEZE_SLOTS: "6", TRAPEZE_MAX_ATTEMPTS: "1",
      TRAPEZE_POLL_INTERVAL: "1s", TRAPEZE_SHUTDOWN_GRACE: "1s", TRAPEZE_AUTH: "token", TRAPEZE_TOKENS_FILE: tokens,
      ...(beside ? { DATABASE_URL: beside.database } : {}), ...env,
    },
  });
  let log = "";
  child.stderr.on("data", (text) => { log = (log + text).slice(-20_000); });
  alive.add(child);
  const ended = once(child, "exit").finally(() => alive.delete(child));
  const line = await Promise.race([
    once(createInterface({ input: child.stdout }), "line").then(([text]) => text),
    ended.then(([code]) => { throw new Error(`serve ended with ${code} before it was ready:\n${log}`); }),
    pause(60_000, undefined, { ref: false }).then(() => { throw new Error(`serve was not ready within a minute:\n${log}`); }),
  ]);
  return new Pod({ child, ended, folder, ready: JSON.parse(line), log: () => log });
}

export class Pod {
  constructor(made) { Object.assign(this, made); }
  get url() { return this.ready.http; }
  get database() { return this.ready.database; }

  // api sends a request to the pod's API and returns the JSON of the response. A rejected request throws an error.
  async api(method, path, body, as = "operator", headers = {}) {
    const answer = await fetch(this.url + path, {
      method, body: body === undefined ? undefined : JSON.stringify(body),
      headers: { Authorization: `Bearer ${people[as].token}`, "Content-Type": "application/json", Accept: "application/json", ...headers },
    });
    const text = await answer.text();
    if (!answer.ok) throw Object.assign(new Error(`${method} ${path}: ${answer.status} ${text}`), { status: answer.status });
    return text ? JSON.parse(text) : undefined;
  }

  // submit submits a job and returns its ID.
  async submit(kind, args = {}, more = {}, as = "operator") {
    return (await this.api("POST", "/jobs", { kind, args, ...more }, as)).id;
  }

  // submitWaiting submits jobs until one of them waits, and returns its ID. Closing a lane or the queue takes effect a moment later,
  // and until then a job may be started on insert.
  submitWaiting(kind, args = {}, more = {}) {
    return until("a job waits", async () => {
      const { id, state } = await this.api("POST", "/jobs", { kind, args, ...more });
      return state === "pending" && id;
    });
  }

  job(id) { return this.api("GET", `/jobs/${id}`); }

  // reaches waits until a job is in one of the given states.
  reaches(id, ...states) {
    return until(`job ${id} is ${states.join(" or ")}`, async () => {
      const job = await this.job(id);
      return states.includes(job.state) && job;
    });
  }

  // stop stops the pod together with its PostgreSQL.
  async stop() {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      this.child.kill("SIGTERM");
      const late = setTimeout(() => this.child.kill("SIGKILL"), 20_000);
      await this.ended;
      clearTimeout(late);
    }
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}
