"use strict";
// Sorts a table by the column whose label is pressed: numbers by size, words by letters, cells
// without a value last. Pressed again, the other way round.
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];

  // A number may have a sign before it and a unit after it: "> 0.99", "3.99 USD/h", "4 × 1xH100".
  const numberOf = (text) => {
    const [, digits] = /^[<>≤≥~+✓✗ ]*(-?[\d,]*\.?\d+)(?![\w-])/.exec(text) ?? [];
    return digits === undefined ? NaN : Number(digits.replaceAll(",", ""));
  };

  function sort(column, sign) {
    const rows = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
    const isEmpty = ({ text }) => ["", "–"].includes(text);
    const hasNumbers = rows.every((each) => isEmpty(each) || !Number.isNaN(numberOf(each.text)));
    const order = (a, b) => (hasNumbers ? numberOf(a.text) - numberOf(b.text)
      : a.text.localeCompare(b.text, "en", { numeric: true }));
    rows.sort((a, b) => isEmpty(a) - isEmpty(b) || (isEmpty(a) ? 0 : sign * order(a, b)));
    body.append(...rows.map(({ row }) => row));
  }

  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const way = head.ariaSort === "ascending" ? "descending" : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", way);
      sort(column, way === "ascending" ? 1 : -1);
    });
  });
}
