// What people do on a page, and what they see there.
import { strict as assert } from "node:assert";

// press presses a button, and says yes where the page asks.
export async function press(page, name, within = page.locator("main")) {
  const button = within.getByRole("button", { name, exact: true });
  const asks = await button.evaluate((one) => "ask" in one.dataset || "bulk" in one.dataset || "ask" in (one.form?.dataset ?? {}));
  await button.click();
  if (asks) await page.locator("#ask-yes").click();
}

// says waits until the page tells that something is done.
export const says = (page, text) => page.locator("#said", { hasText: text }).waitFor();

// state waits until the head of a job's or a pipeline's page shows a state.
export const state = (page, name) => page.locator(".head .state", { hasText: new RegExp(`^${name}$`) }).waitFor();

// stay marks a page, and gives what checks that it is still the same one: that it was not loaded again.
export async function stay(page) {
  await page.evaluate(() => { window.same = true; });
  return async () => assert.equal(await page.evaluate(() => window.same), true, "the page was not loaded again");
}

// again has the page read itself anew within a second, as when its tab is looked at again, rather than after five.
export const again = (page) => page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
