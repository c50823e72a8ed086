// Requests to the API, and the messages for rejected requests.
import { api } from "./page.js";
import { undone } from "./undone.js";

const verbs = /^(\S+) (.*)$/;

// send sends a request with a JSON body to the API. It returns an error message, or an empty string.
export const send = async (what, body, reason) => (await request(what, body, reason)).wrong;

// request sends a request to the API, and returns its response or an error message.
export async function request(what, body = "{}", reason = "") {
  const [, method, path] = verbs.exec(what);
  const headers = { "Content-Type": "application/json", Accept: "application/json" };
  // A header value consists of bytes, here in UTF-8, and cannot contain line breaks.
  if (reason) headers["X-Reason"] = String.fromCharCode(...new TextEncoder().encode(reason.replace(/[\0-\x1f\x7f]+/g, " ")));
  try {
    const answer = await fetch(new URL(path, api), { method, headers, ...(method !== "GET" && { body }) });
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) return { said, wrong: "" };
    if (answer.status === 401 && method !== "GET") {
      undone("Your session has ended. The last action was not performed: sign in and repeat it.");
      return { said, wrong: "your session has ended: sign in again. The action was not performed.", signedOut: true };
    }
    const message = said.message || answer.statusText || String(answer.status);
    const words = said.detail?.includes(message) ? said.detail : [message, said.detail].filter(Boolean).join(": ");
    return { said, wrong: words +
      (said.request_id ? ` (request ${said.request_id})` : "") };
  } catch {
    return { said: {}, wrong: "The server does not respond. The request may have taken effect: check before you repeat it." };
  }
}
