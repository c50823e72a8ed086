// Describes an expression while it is being typed.
import { $ } from "./page.js";
import { request } from "./request.js";

let lookedAt = 0;
async function preview(form) {
  const place = $(".preview", form), mine = ++lookedAt;
  const { expression, zone } = form.elements;
  await new Promise((go) => setTimeout(go, 250)); // until the user pauses
  if (mine !== lookedAt) return;
  if (!expression.value) { place.replaceChildren(); return; }
  const asked = new URLSearchParams({ expression: expression.value, zone: zone.value });
  const { said, wrong } = await request("GET admin/workers/schedules/preview?" + asked, null);
  if (mine !== lookedAt) return;
  const line = (name, text, as = "") => Object.assign(document.createElement(name), { textContent: text, className: as });
  place.classList.toggle("wrong", Boolean(wrong));
  if (wrong) { place.replaceChildren(line("p", wrong)); return; }
  const clock = new Intl.DateTimeFormat("en-GB", { timeZone: said.zone, weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
  const occurrences = line("ol", "", "occurrences");
  occurrences.append(...said.next_occurrences.map((at) => line("li", clock.format(new Date(at)))));
  place.replaceChildren(line("p", said.words, "words"), said.next_occurrences.length ? occurrences : line("p", "No occurrences."));
}

// When the field gets the focus, the browser's known time zones are added to the list.
document.addEventListener("focusin", (event) => {
  const list = event.target.list;
  if (list?.id === "zones" && !list.children.length) list.append(...["UTC", ...Intl.supportedValuesOf("timeZone")].map((value) => Object.assign(document.createElement("option"), { value })));
});
document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form && "preview" in form.dataset && ["expression", "zone"].includes(event.target.name)) preview(form);
});
document.addEventListener("toggle", (event) => {
  const form = event.target.open && $("form[data-preview]", event.target);
  if (form) preview(form);
}, true);
