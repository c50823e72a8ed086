// A scene is a browser test: a user opens pages of the pod and acts on them.
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { launch, visit } from "./browser.mjs";
import { start } from "./pod.mjs";

// The first scene that needs a shared resource starts it. All of them are stopped at the end.
const started = [];
export const once = (make) => {
  let made;
  return () => (made ??= make().then(keep));
};

export const keep = (thing) => { started.push(thing); return thing; };

export const browser = once(launch);
export const pod = once(() => start("web-1"));

after(async () => {
  for (const thing of started.reverse()) await (thing.close?.() ?? thing.stop());
}, { timeout: 60_000 });

// scene runs a test with a separate page. It also fails if a page reported a problem. Functions passed to undo run at the end, even after
// a failure, because other scenes follow.
export function scene(name, act, { on = pod, within = 60_000, ...options } = {}) {
  test(name, { timeout: within }, async () => {
    const there = await on();
    const { page, context, complaints } = await visit(await browser(), there, options);
    const undone = [];
    try {
      await act({ page, pod: there, undo: (what) => undone.push(what) });
    } catch (error) {
      const seen = await page.evaluate(() => document.body.innerText).catch(() => "nothing any more");
      throw new Error(`${error.message}\nat ${page.url()}, which says:\n${seen.slice(0, 2000)}\nand complains: ${complaints.join("\n") || "nothing"}`, { cause: error });
    } finally {
      for (const what of undone.reverse()) await what();
      await context.close();
    }
    assert.deepEqual(complaints, [], "pages complained");
  });
}
