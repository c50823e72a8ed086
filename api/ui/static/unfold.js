// Unfolds a closed <details> element once when a link points to it, even if the element appears only after an update.
let unfolded = false;
function unfold() {
  const there = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (unfolded || there?.tagName !== "DETAILS") return;
  unfolded = there.open = true;
  there.scrollIntoView();
}

document.addEventListener("renewed", unfold);
addEventListener("hashchange", () => { unfolded = false; unfold(); });
unfold();
