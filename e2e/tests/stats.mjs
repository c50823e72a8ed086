import assert from "node:assert/strict";
import { again, stay } from "../lib/acts.mjs";
import { look } from "../lib/look.mjs";
import { until } from "../lib/pod.mjs";
import { scene } from "../lib/scene.mjs";

scene("the first page begins with the ended jobs of the last hour, as charts and as a table", async ({ page, pod }) => {
  for (const n of [1, 2, 3]) await pod.reaches(await pod.submit("demo.sleep", { ms: 40 * n }, { subject: "stats" }), "succeeded");
  await pod.reaches(await pod.submit("demo.fail", { message: "counted" }), "failed");
  await page.goto("/ui/");
  const same = await stay(page);
  const numbers = await until("the pod has written the minute", async () => { // it does so at the end of each
    const { total, of } = await pod.api("GET", "/stats", undefined, "viewer");
    return of.some(({ name, failed }) => name === "demo.fail" && failed > 0) && total;
  }, 75_000);
  assert.ok(numbers.finished >= 4 && numbers.run_p50_s >= 0);
  await again(page);
  const charts = page.locator(".chart canvas");
  await charts.nth(1).waitFor();
  assert.equal(await charts.count(), 2);
  const section = page.locator("section[aria-labelledby=h-stats]"), table = section.locator("#stats-numbers tbody");
  assert.ok(await page.evaluate(() => [...document.querySelectorAll(".chart canvas")].every((canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v !== 0))), "both charts are drawn");
  await page.locator("section[aria-labelledby=h-kinds] tr", { hasText: "demo.sleep" }).locator("svg.trend").waitFor();
  await section.getByText("Numbers of the charts").click();
  assert.equal(await table.locator("tr").count(), 61);
  await page.evaluate(() => dispatchEvent(new Event("resize")));
  await again(page);
  await same();
  assert.ok(await table.isVisible(), "an update leaves the table open");
  await look(page, "now-stats", []);
  await page.setViewportSize({ width: 390, height: 780 });
  await page.waitForFunction(() => [...document.querySelectorAll(".chart canvas")].every((one) => one.getBoundingClientRect().right <= innerWidth)); // the charts shrink

  await section.getByRole("link", { name: "24h" }).click();
  await page.waitForURL(/window=24h/);
  await section.getByText("in the last 24h").waitFor();
  await section.locator("dd").getByRole("link").click();
  await page.waitForURL(/jobs\?state=failed&since=24h/);
  await page.getByText("demo.fail").first().waitFor();
}, { within: 150_000 });
