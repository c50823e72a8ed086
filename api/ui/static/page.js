// Access to the elements of the page, and the address of the API.

export const $ = (selector, within = document) => within.querySelector(selector);
export const all = (selector, within = document) => [...within.querySelectorAll(selector)];
export const api = new URL(document.body.dataset.api, location.href);

// tell shows the result of a user's action.
export function tell(good, wrong) {
  $("#said").textContent = good;
  $("#wrong").textContent = wrong;
  if (good || wrong) scrollTo({ top: 0, behavior: "instant" });
}
