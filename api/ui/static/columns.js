// Hides table columns that are empty in every row, so that the other columns get their space.
import { $, all } from "./page.js";

const empty = (cell) => !cell || (cell.textContent.trim() === "" && !$("svg, input, progress", cell));

function show() {
  for (const table of all("main table.fold")) {
    const [head] = table.tHead.rows, rows = table.tBodies[0].rows;
    for (const title of head.cells) {
      const column = [...rows].map((row) => row.cells[title.cellIndex]);
      const hide = column.length > 0 && column.every(empty);
      for (const cell of [title, ...column]) if (cell) cell.hidden = hide;
    }
  }
}

document.addEventListener("renewed", show);
show();
