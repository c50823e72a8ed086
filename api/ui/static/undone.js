// Shows a message on the sign-in page if the last action was not performed because the session had ended.
import { $ } from "./page.js";

// undone stores a message for the sign-in page, which the tab shows next.
export const undone = (text) => sessionStorage.setItem("undone", text);

const place = $("#undone"), text = sessionStorage.getItem("undone");
if (!place) sessionStorage.removeItem("undone");
if (place && text) {
  place.textContent = text;
  place.hidden = false;
}
if (place) for (const key of Object.keys(sessionStorage)) if (key.startsWith("picked:")) sessionStorage.removeItem(key); // the next user may be another one
