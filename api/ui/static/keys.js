// Keyboard shortcuts. They have no effect in fields and dialogs. The user can turn them off, for example when using speech input.
import { $, all } from "./page.js";
import { switchZone } from "./zone.js";

const sheet = $("#keys"), on = $("#keys-on"), patience = 1500;
let goAt = 0; // when the first key of "g" and a page was pressed, in milliseconds

on.checked = localStorage.getItem("keys") !== "off";
on.addEventListener("change", () => localStorage.setItem("keys", on.checked ? "on" : "off"));

for (const link of all("nav a[data-key]")) {
  const row = document.createElement("div"), keys = document.createElement("dt"), text = document.createElement("dd");
  keys.append(...["g", link.dataset.key].flatMap((key) => [Object.assign(document.createElement("kbd"), { textContent: key }), " "]));
  text.textContent = "go to " + link.textContent;
  row.append(keys, text);
  $(".keys").append(row);
}

// step moves the focus to the link in the next or previous row.
function step(by) {
  const links = all("main tbody tr").map((row) => $("th a, td a", row)).filter((link) => link?.checkVisibility());
  const row = document.activeElement.closest("tr"), at = links.findIndex((link) => link.closest("tr") === row);
  const to = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  links[to]?.focus();
}

const actions = {
  "?": () => sheet.showModal(),
  "/": () => $("main :is(input[type=search], .filters input:not([type=checkbox]))")?.focus(),
  j: () => step(1),
  k: () => step(-1),
  x: () => $("input[name=pick]", document.activeElement.closest("tr") ?? document.createElement("tr"))?.click(),
  p: () => { if (!$("#hold").hidden) $("#hold").click(); },
  u: () => { if (!$("#zone-choice").hidden) switchZone(); },
  g: () => { goAt = Date.now(); },
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (!on.checked || event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") ||
    target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
  const page = Date.now() - goAt < patience && $(`nav a[data-key="${CSS.escape(key)}"]`);
  const act = page ? () => page.click() : Object.hasOwn(actions, key) && actions[key];
  goAt = 0;
  if (!act) return;
  event.preventDefault();
  act();
});
$("#show-keys").addEventListener("click", () => sheet.showModal());
