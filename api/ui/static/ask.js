// The dialog that asks for confirmation before an action.
import { $ } from "./page.js";

// ask describes an action and asks for confirmation. It resolves to the reason that was entered, which may be empty, or to null if the
// user cancels. The close event of a dialog is asynchronous, so the next dialog may already be open by then.
let answered = () => {};
$("#ask").addEventListener("close", () => {
  if (!$("#ask").open) answered($("#ask").returnValue === "yes" ? $("#ask-reason").value.trim() : null);
});

export function ask(title, text, list, danger) {
  const box = $("#ask"), yes = $("#ask-yes");
  answered(null);
  $("#ask-title").textContent = title + "?";
  $("#ask-text").textContent = text;
  $("#ask-list").replaceChildren(...list.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  yes.textContent = title;
  yes.className = danger ? "danger" : "primary";
  box.returnValue = $("#ask-reason").value = "";
  box.showModal();
  return new Promise((go) => { answered = go; });
}

// In the reason field, Enter confirms. By default it would press the first button of the dialog, which cancels.
$("#ask-reason").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  $("#ask").close("yes");
});
