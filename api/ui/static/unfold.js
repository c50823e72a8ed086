// A link to a thing that is folded away unfolds it, once, also when it only appears later.
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
