// Actions on a page, and checks of what it shows.
import { strict as assert } from "node:assert";

// press presses a button, and confirms the dialog if the page shows one.
export async function press(page, name, within = page.locator("main")) {
  const button = within.getByRole("button", { name, exact: true });
  const asks = await button.evaluate((one) => "ask" in one.dataset || "bulk" in one.dataset || "ask" in (one.form?.dataset ?? {}));
  await button.click();
  if (asks) await page.locator("#ask-yes").click();
}

// says waits until the page reports that an action is done.
export const says = (page, text) => page.locator("#said", { hasText: text }).waitFor();

// state waits until the header of a job's or pipeline's page shows a state.
export const state = (page, name) => page.locator(".head .state", { hasText: new RegExp(`^${name}$`) }).waitFor();

// stay marks a page, and returns a function that checks that the page was not reloaded.
export async function stay(page) {
  await page.evaluate(() => { window.same = true; });
  return async () => assert.equal(await page.evaluate(() => window.same), true, "the page was not loaded again");
}

// again makes the page update itself within a second instead of five, as if its tab had become visible.
export const again = (page) => page.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
