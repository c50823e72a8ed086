// Crawls the documentation site in a headless Chromium: `make docs && make e2e ARGS=--docs`.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { after, before, test } from "node:test";
import { launch, visit } from "./lib/browser.mjs";
import { fits } from "./lib/look.mjs";

const dist = new URL("../docs/.vitepress/dist/", import.meta.url).pathname;
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json", ".woff2": "font/woff2" };
const sizes = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };

let server, browser, site;
const pages = readdirSync(dist, { recursive: true }).filter((name) => name.endsWith(".html") && name !== "404.html").map((name) => "/" + name);

before(async () => {
  server = createServer((request, response) => {
    const path = decodeURI(new URL(request.url, "http://site").pathname);
    try {
      const file = join(dist, path.endsWith("/") ? path + "index.html" : path);
      const body = readFileSync(file);
      response.writeHead(200, { "Content-Type": types[extname(file)] ?? "application/octet-stream" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  site = { url: `http://127.0.0.1:${server.address().port}` };
  browser = await launch();
});

after(async () => {
  await browser?.close();
  server.close();
});

// read returns the anchors of the open page, and the addresses of its links within the site.
function read(page) {
  return page.evaluate(() => ({
    anchors: [...document.querySelectorAll("[id]")].map((one) => one.id),
    links: [...document.querySelectorAll("a[href]")].map((one) => new URL(one.href)).filter((url) => url.origin === location.origin)
      .map((url) => ({ path: url.pathname.replace(/\/$/, "/index.html"), anchor: decodeURIComponent(url.hash.slice(1)) })),
  }));
}

for (const [name, size] of Object.entries(sizes)) {
  test(`every page is whole in a window ${size.width} wide`, async () => {
    const { page, context, complaints } = await visit(browser, site, { as: null, size });
    const found = {};
    for (const path of pages) {
      await page.goto(path);
      await page.waitForFunction(() => document.querySelector("#app")?.__vue_app__);
      found[path] = await read(page);
      const broken = await page.evaluate(async () => {
        const images = [...document.images];
        for (const image of images) image.loading = "eager";
        await Promise.allSettled(images.map((image) => image.decode()));
        return images.filter((image) => !image.naturalWidth).map((image) => image.src);
      });
      assert.deepEqual(broken, [], `images of ${path}`);
      await fits(page, `${path}, ${name}`);
    }
    const dead = Object.entries(found).flatMap(([from, { links }]) => links
      .filter(({ path, anchor }) => !found[path] || anchor && !found[path].anchors.includes(anchor)).map(({ path, anchor }) => `${from}: ${path}#${anchor}`));
    assert.deepEqual([...new Set(dead)], [], "dead links");
    const linked = new Set(Object.values(found).flatMap(({ links }) => links.map(({ path }) => path)));
    assert.deepEqual(pages.filter((path) => !linked.has(path)), [], "pages without a link to them");
    assert.deepEqual(complaints, []);
    await context.close();
  });

  test(`the search finds a page in a window ${size.width} wide`, async () => {
    const { page, context, complaints } = await visit(browser, site, { as: null, size });
    await page.goto("/");
    await page.locator("#local-search button").click();
    await page.locator("#localsearch-input").fill("point-in-time restore");
    const first = page.locator(".VPLocalSearchBox .result").first();
    await first.click();
    await page.waitForURL(/\/backup-and-restore\.html/);
    await page.locator("h1", { hasText: "Backup" }).waitFor();
    await fits(page, `the found page, ${name}`);
    assert.deepEqual(complaints, []);
    await context.close();
  });
}
