// Forms that send only the changed fields.
import { ask } from "./ask.js";
import { revive } from "./live.js";
import { $, all, tell } from "./page.js";
import { request } from "./request.js";

// valueOf returns the value of a field as JSON. It returns the text of a JSON field unchanged, because JavaScript would round long numbers.
function valueOf(field) {
  if ("json" in field.dataset) { JSON.parse(field.value); return field.value; }
  if ("text" in field.dataset) return JSON.stringify(field.value);
  if ("lines" in field.dataset) return JSON.stringify(field.value.split("\n").filter((line) => line !== ""));
  if (field.type === "checkbox") return JSON.stringify(field.checked);
  if (field.type === "select-one") return JSON.stringify(field.value);
  if (field.value === "") return "null";
  return JSON.stringify(field.type === "number" ? Number(field.value) : field.value);
}

// changed reports whether the user has changed a field.
function changed(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.type === "select-one") return !field.selectedOptions[0]?.defaultSelected && (field.selectedIndex > 0 || [...field.options].some((one) => one.defaultSelected));
  return field.value !== field.defaultValue;
}

// fill returns the changed fields of a form as a JSON object, or an empty string if nothing has changed.
function fill(form) {
  const texts = [];
  for (const field of form.elements) {
    if (!field.name || "path" in field.dataset) continue;
    if (changed(field) || "always" in field.dataset) texts.push(JSON.stringify(field.name) + ":" + valueOf(field));
  }
  return texts.length ? "{" + texts.join(",") + "}" : "";
}

async function submit(form) {
  const { label, ask: text } = form.dataset;
  let what = form.dataset.form, body;
  for (const field of all("[data-path]", form)) what = what.replace("{" + field.name + "}", encodeURIComponent(field.value));
  try { body = fill(form); } catch (wrong) { tell("", label + ": invalid JSON: " + wrong.message); return; }
  if (what.startsWith("PATCH") && !body) { tell("", label + ": nothing changed"); return; }
  const reason = text ? await ask(label, text, [], Boolean($("button.danger", form))) : "";
  if (reason === null) return;
  const buttons = all("button", form);
  for (const button of buttons) button.disabled = true; // a second click would send the request again
  const { said, wrong } = await request(what, body || undefined, reason);
  for (const button of buttons) button.disabled = false;
  if (wrong) { tell("", label + ": " + wrong); return; }
  if (form.dataset.then) { location.assign(form.dataset.then.replace("{id}", said.id)); return; }
  for (const field of form.elements) {
    if (field.type === "select-one") { for (const one of field.options) one.defaultSelected = one.selected; continue; }
    field.defaultValue = field.value;
    field.defaultChecked = field.checked;
  }
  tell(label + ": " + (what.startsWith("P") && !text ? "saved" : "done"), "");
  revive();
}

// An invalid field in a closed <details> is unfolded, because the browser could not show its message otherwise.
document.addEventListener("invalid", (event) => {
  const folded = event.target.closest("details");
  if (folded) folded.open = true;
}, true);
document.addEventListener("submit", (event) => {
  if (!event.target.dataset.form) return;
  event.preventDefault();
  submit(event.target);
});
