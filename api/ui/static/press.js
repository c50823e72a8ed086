// Buttons that send one request.
import { about, ask } from "./ask.js";
import { revive } from "./live.js";
import { tell } from "./page.js";
import { send } from "./request.js";

async function press(button) {
  const { send: what, label, ask: text, about: path } = button.dataset;
  const shown = path ? await about(path) : [];
  const reason = text ? await ask(label, text, [], button.classList.contains("danger"), shown) : "";
  if (reason === null) return;
  button.disabled = true;
  const wrong = await send(what, undefined, reason);
  button.disabled = false;
  tell(wrong ? "" : label + ": done", wrong ? label + ": " + wrong : "");
  revive();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-send]");
  if (button) press(button);
});
