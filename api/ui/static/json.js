// Folds and copies the JSON on a job's page.
import { $, all, tell } from "./page.js";

// copy puts a text on the clipboard. Without TLS, browsers can only copy the selection, through an older command.
async function copy(text) {
  if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  const field = Object.assign(document.createElement("textarea"), { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("the browser refused");
}

// inner returns the values that the button folds. It omits the outermost value, so that the names of its fields stay visible.
const inner = (button) => all("details details", $("#" + button.dataset.fold));

function label() {
  for (const button of all("[data-fold]")) {
    button.hidden = !inner(button).length;
    button.firstChild.data = inner(button).some((one) => one.open) ? "Fold all" : "Unfold all";
  }
}

function fold(button) {
  const open = !inner(button).some((one) => one.open);
  for (const one of inner(button)) one.open = open;
  label();
}

// copyValue reads the whole value, because the page shows only the beginning of a long one.
async function copyValue(button) {
  try {
    const answer = await fetch($("a[download]", button.parentElement).href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText || answer.status);
    await copy((await answer.text()).trimEnd());
    button.firstChild.data = "Copied";
  } catch (wrong) { tell("", "Copy: " + wrong.message); }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-fold], [data-copy]");
  if (button) (button.dataset.fold ? fold : copyValue)(button);
});
document.addEventListener("toggle", (event) => { if (event.target.closest(".json")) label(); }, true);
document.addEventListener("renewed", label);
label();
