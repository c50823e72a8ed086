// The browser and its monitored pages. A problem that a page reports fails the test that opened it.
import { accessSync, constants } from "node:fs";
import { delimiter, join } from "node:path";
import { chromium } from "playwright-core";
import { people } from "./pod.mjs";

// find returns the path of Chromium on this machine.
function find() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    for (const folder of (process.env.PATH ?? "").split(delimiter)) {
      try { accessSync(join(folder, name), constants.X_OK); return join(folder, name); } catch { /* not in this folder */ }
    }
  }
  throw new Error("no chromium on PATH: run `make e2e` as root on Debian, which installs it, or name one in CHROMIUM");
}

// launch starts the browser. Chromium's sandbox does not work for root.
export function launch() {
  return chromium.launch({
    executablePath: find(), chromiumSandbox: process.getuid() !== 0,
    args: ["--disable-dev-shm-usage", "--font-render-hinting=none", "--force-color-profile=srgb"],
  });
}

// watch records in `complaints` everything that a page must never do: violate the content security policy, log an error to the console,
// throw, open a dialog, set window.xss as the hostile texts try to, or send a request to another host. Console messages that a test
// expects are omitted.
async function watch(context, origin, complaints, expected) {
  const complain = (text) => { if (!expected.some((known) => known.test(text))) complaints.push(text); };
  await context.exposeBinding("complain", (_, text) => complain(text));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (e) => window.complain(`policy: ${e.violatedDirective} forbids ${e.blockedURI} (${e.sourceFile}:${e.lineNumber}) ${e.sample}`));
    Object.defineProperty(window, "xss", { set: (by) => window.complain(`a hostile text was run: ${by}`) });
  });
  context.on("console", (message) => { if (message.type() === "error") complain(`console: ${message.text()} (${message.location().url})`); });
  context.on("weberror", (error) => complain(`thrown: ${error.error()}`));
  context.on("dialog", (dialog) => { complain(`dialog: ${dialog.message()}`); dialog.dismiss().catch(() => {}); });
  context.on("request", (request) => { if (!request.url().startsWith(origin + "/")) complain(`asked for ${request.url()}`); });
}

// visit opens a page of the pod as a user, or without a login if as is null.
export async function visit(browser, pod, { as = "operator", scheme = "light", size = { width: 1200, height: 800 }, expected = [], complaints = [], zone = "UTC" } = {}) {
  const context = await browser.newContext({
    baseURL: pod.url, colorScheme: scheme, viewport: size, locale: "en-GB", timezoneId: zone, reducedMotion: "reduce",
  });
  context.setDefaultTimeout(15_000);
  await watch(context, pod.url, complaints, expected);
  if (as) await logIn(context, pod, as);
  const page = await context.newPage();
  return { page, context, complaints };
}

// logIn adds a session cookie to a context. Another test covers logging in with the form.
async function logIn(context, pod, as) {
  pod.sessions ??= {};
  pod.sessions[as] ??= begin(pod, as);
  await context.addCookies(await pod.sessions[as]);
}

async function begin(pod, as) {
  const answer = await fetch(pod.url + "/ui/login", {
    method: "POST", redirect: "manual", body: new URLSearchParams({ token: people[as].token }), headers: { Origin: pod.url },
  });
  const cookie = answer.headers.getSetCookie().map((line) => line.split(";")[0]).find(Boolean);
  if (!cookie) throw new Error(`log in as ${as}: ${answer.status} ${await answer.text()}`);
  const cut = cookie.indexOf("=");
  return [{ name: cookie.slice(0, cut), value: cookie.slice(cut + 1), url: pod.url }];
}
