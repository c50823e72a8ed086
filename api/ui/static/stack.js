// Reads the stack of a running job's handler, and shows it until the user leaves the page.
import { $, tell } from "./page.js";
import { request } from "./request.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-stack]");
  if (!button) return;
  button.disabled = true;
  const { said, wrong } = await request(button.dataset.stack);
  button.disabled = false;
  tell("", wrong && "Read the stack: " + wrong);
  if (wrong) return;
  const shown = $("#stack pre");
  shown.textContent = `Pod ${said.pod}, fence ${said.fence}, ${said.at}\n\n${said.stack}`;
  shown.hidden = false;
});
