// The page itself: how its parts are found, and where its API is.

export const $ = (selector, within = document) => within.querySelector(selector);
export const all = (selector, within = document) => [...within.querySelectorAll(selector)];
export const api = new URL(document.body.dataset.api, location.href);

// tell shows what came of something that a person did.
export function tell(good, wrong) {
  $("#said").textContent = good;
  $("#wrong").textContent = wrong;
  if (good || wrong) scrollTo({ top: 0, behavior: "instant" });
}
