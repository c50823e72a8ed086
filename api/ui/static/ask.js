// The dialog that is shown before something happens.
import { $ } from "./page.js";

// ask shows what is about to happen. It returns the reason that was given, which may be empty, or null: not to go on. A dialog tells of
// its end a moment later: by then the next may be open.
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

// Who has given a reason goes on with the enter key, which else would press the first button of the dialog.
$("#ask-reason").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  $("#ask").close("yes");
});
