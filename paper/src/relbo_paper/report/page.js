// Sorts a table by the column whose heading is pressed; a second press reverses the order.
"use strict";

function keyOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  if (cell.classList.contains("number")) return null;
  const text = cell.textContent.trim();
  return text === "" ? null : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortBy(heading) {
  const table = heading.closest("table");
  const column = heading.cellIndex;
  const descending = heading.getAttribute("aria-sort") === "ascending";
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [keyOf(row, column), row]);
  rows.sort(([a], [b]) => {
    // Empty cells stay last in both orders.
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? compare(b, a) : compare(a, b);
  });
  for (const [, row] of rows) body.append(row);
  for (const other of heading.parentElement.cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

for (const button of document.querySelectorAll("table.sortable thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

// A link to a note opens the list that contains it.
for (const link of document.querySelectorAll('td a[href*="-note-"]')) {
  link.addEventListener("click", () => {
    const note = document.getElementById(link.hash.slice(1));
    if (note) note.closest("details").open = true;
  });
}
