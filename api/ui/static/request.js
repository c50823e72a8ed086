// Requests to the API, and what is to be said if it refuses one.
import { api } from "./page.js";

const verbs = /^(\S+) (.*)$/;

// send sends one request to the API, its body as JSON text, and returns what is to be said if it was refused.
export const send = async (what, body, reason) => (await request(what, body, reason)).wrong;

// request sends one request to the API, and returns its answer, or what is to be said if it was refused.
export async function request(what, body = "{}", reason = "") {
  const [, method, path] = verbs.exec(what);
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  // A header holds bytes, which here are UTF-8; there are no lines in it.
  if (reason) headers["X-Reason"] = String.fromCharCode(...new TextEncoder().encode(reason.replace(/[\0-\x1f\x7f]+/g, " ")));
  try {
    const answer = await fetch(new URL(path, api), { method, headers, ...(method !== "GET" && { body }) });
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) return { said, wrong: "" };
    const message = said.message || answer.statusText || String(answer.status);
    const words = said.detail?.includes(message) ? said.detail : [message, said.detail].filter(Boolean).join(": ");
    return { said, wrong: words +
      (said.request_id ? ` (request ${said.request_id})` : "") };
  } catch {
    return { said: {}, wrong: "The server does not respond. The request may have taken effect: check before you repeat it." };
  }
}
