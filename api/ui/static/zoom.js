// Zooms the drawing of a pipeline. The browser tab keeps the zoom level for other pipelines.
import { $ } from "./page.js";

const least = 0.2, most = 3, step = 1.25;
let zoom = sessionStorage.getItem("zoom") ?? "1"; // a factor, or "fit"

const natural = (tree) => Number(tree.dataset.w);
const factor = (tree) => zoom === "fit" ? Math.max(least, Math.min(1, (tree.parentElement.clientWidth - 16) / natural(tree))) : Number(zoom);

function show() {
  const tree = $(".tree");
  if (!tree) return;
  const now = factor(tree);
  tree.setAttribute("width", Math.round(natural(tree) * now));
  tree.setAttribute("height", Math.round(tree.dataset.h * now));
}

function set(to) {
  zoom = to === "fit" ? to : String(Math.min(most, Math.max(least, to)));
  sessionStorage.setItem("zoom", zoom);
  show();
}

for (const [id, to] of Object.entries({ larger: (now) => now * step, smaller: (now) => now / step, fit: () => "fit", full: () => 1 })) {
  $("#" + id)?.addEventListener("click", () => set(to(factor($(".tree")))));
}
addEventListener("resize", show);
document.addEventListener("renewed", show);
show();
