import assert from "node:assert/strict";
import { again } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { start } from "../lib/pod.mjs";
import { proxy } from "../lib/proxy.mjs";
import { keep, once, pod, scene } from "../lib/scene.mjs";

// A pod whose connection to the database can be cut.
const cuttable = once(async () => {
  const way = keep(await proxy((await pod()).database));
  const there = await start("web-3", { beside: way });
  return Object.assign(there, { way });
});

scene("while the database is unavailable, pages report it, and they recover by themselves", async ({ page, pod: there }) => {
  await page.goto("/ui/");
  await page.locator("#pulse.live").waitFor();
  const lanes = await page.locator("#h-lanes ~ table tbody tr").count();
  there.way.cut();
  await again(page);
  await page.locator("#pulse.lost", { hasText: "no response; as of" }).waitFor();
  assert.equal(await page.locator("#h-lanes ~ table tbody tr").count(), lanes, "what was read stays to be read");

  const other = await page.context().newPage();
  assert.equal((await other.goto("/ui/jobs")).status(), 503);
  await other.getByText("The database does not respond").waitFor();
  await look(other, "database-away", ["light"]);

  there.way.mend();
  await again(page);
  await page.locator("#pulse.live, #pulse:text('every 5 s')").first().waitFor();
  await other.getByRole("heading", { name: "Jobs", level: 1 }).waitFor();
  await other.getByRole("link", { name: "Pipelines" }).waitFor();
}, { on: cuttable, expected: [/status of 503/, /ERR_INCOMPLETE_CHUNKED_ENCODING/] });
