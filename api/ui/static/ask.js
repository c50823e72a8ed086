// The dialog that asks for confirmation before an action.
import { $, all, api } from "./page.js";

// ask describes an action and asks for confirmation. It resolves to the reason that was entered, which may be empty, or to null if the
// user cancels. A dialog's close event is asynchronous, so the next dialog may already be open when it arrives. about lists elements to show.
let answered = () => {};
$("#ask").addEventListener("close", () => {
  if (!$("#ask").open) answered($("#ask").returnValue === "yes" ? $("#ask-reason").value.trim() : null);
});

export function ask(title, text, list, danger, about = []) {
  const box = $("#ask"), yes = $("#ask-yes");
  answered(null);
  $("#ask-title").textContent = title + "?";
  $("#ask-text").textContent = text;
  $("#ask-about").replaceChildren(...about);
  $("#ask-list").replaceChildren(...list.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  yes.textContent = title;
  yes.className = danger ? "danger" : "primary";
  box.returnValue = $("#ask-reason").value = "";
  box.showModal();
  return new Promise((go) => { answered = go; });
}

// about reads a job's page and returns the job's details and arguments as that page shows them.
export async function about(path) {
  const line = (text) => [Object.assign(document.createElement("p"), { textContent: text })];
  try {
    const answer = await fetch(new URL("ui/" + path, api), { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.status === 403) return line("The job is hidden from you: this needs the permission jobs:read.");
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const facts = Object.assign(document.createElement("dl"), { className: "facts" });
    facts.append(...all("div[data-about]", page));
    for (const link of all("a", facts)) link.removeAttribute("href"); // it is relative to that page
    const head = $("#h-args", page), args = $("#args", page);
    head.removeAttribute("id");
    args.id = "ask-args";
    return [...line($("h1", page).textContent), facts, head, args];
  } catch {
    return line("The job could not be read: open its page to see its arguments.");
  }
}

// In the reason field, Enter confirms. By default, it would press the dialog's first button, which cancels.
$("#ask-reason").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  $("#ask").close("yes");
});
