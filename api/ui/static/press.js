// Buttons that send one request.
import { ask } from "./ask.js";
import { revive } from "./live.js";
import { tell } from "./page.js";
import { send } from "./request.js";

async function press(button) {
  const { send: what, label, ask: text } = button.dataset;
  const reason = text ? await ask(label, text, [], button.classList.contains("danger")) : "";
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
