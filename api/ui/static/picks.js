// The jobs selected in a list. The browser tab stores the selection with the list's filter, so it survives updates and moves to other pages
// of the list.
import { $, all } from "./page.js";

const key = () => "picked:" + $("#bulk")?.dataset.list;
const picked = new Map(JSON.parse(sessionStorage.getItem(key()) ?? "[]")); // id → { kind, state }
const boxes = () => all("input[name=pick]");
let last = ""; // the id of the box that was clicked last, where a range starts

// picks returns the selected jobs.
export const picks = () => [...picked].map(([id, row]) => ({ id, row }));

export function unpick() {
  picked.clear();
  show();
}

function set(box, on) {
  const { kind, state } = $("th", box.closest("tr")).dataset;
  if (on) picked.set(box.value, { kind, state });
  else picked.delete(box.value);
}

// show updates the checkboxes, the number and the buttons, because the jobs' states may have changed.
function show() {
  if (!$("#picked")) return;
  const here = boxes();
  for (const box of here) {
    box.checked = picked.has(box.value);
    if (box.checked) set(box, true);
  }
  sessionStorage.setItem(key(), JSON.stringify([...picked]));
  const elsewhere = picked.size - here.filter((box) => box.checked).length;
  $("#picked").textContent = picked.size ? picked.size + " selected" + (elsewhere ? `, ${elsewhere} not on this page` : "") : "None selected";
  $("#unpick").hidden = !picked.size;
  $("#pick-all").checked = here.length > 0 && here.every((box) => box.checked);
  for (const button of all("[data-bulk]")) button.disabled = !picks().some(({ row }) => button.dataset.states.split(" ").includes(row.state));
}

document.addEventListener("click", (event) => {
  const box = event.target;
  if (box.id === "unpick") unpick();
  if (box.id === "pick-all") for (const one of boxes()) set(one, box.checked);
  if (box.name === "pick") {
    const here = boxes(), from = here.findIndex((one) => one.value === last), to = here.indexOf(box);
    const range = event.shiftKey && from >= 0 ? here.slice(Math.min(from, to), Math.max(from, to) + 1) : [box];
    for (const one of range) set(one, box.checked);
    last = box.value;
  }
  if (box.id === "pick-all" || box.name === "pick") show();
});
document.addEventListener("mousedown", (event) => { if (event.shiftKey && event.target.name === "pick") event.preventDefault(); }); // do not select text
document.addEventListener("renewed", show);
show();
