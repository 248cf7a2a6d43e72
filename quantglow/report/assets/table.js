"use strict";

/* Tables whose columns sort. */

/** `columns`: {title, number, digits, help}; `rows`: lists of values, numbers and null unformatted. */
function sortableTable(columns, rows, onRow = null) {
  const body = element("tbody");
  const order = rows.map((_, at) => at);
  const heads = columns.map((column, at) => headCell(column, () => sort(at)));
  const made = rows.map((row, at) => tableRow(columns, row, onRow && (() => onRow(at))));
  const fill = () => body.replaceChildren(...order.map((at) => made[at]));

  function sort(at) {
    const down = heads[at].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
    order.sort((one, other) => compared(rows[one][at], rows[other][at], down));
    fill();
  }

  fill();
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
}

/** Missing values come last in both directions. */
function compared(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  const [a, b] = [one, other].map((value) => (value === "inf" ? Infinity : value));
  const sign = a === b ? 0 : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -sign : sign;
}

function headCell(column, onClick) {
  const button = element("button", { onclick: onClick, title: column.help ?? null }, column.title);
  return element("th", { scope: "col", class: column.number ? "number" : null }, button);
}

function tableRow(columns, row, onClick) {
  const cells = row.map((value, at) =>
    columns[at].number
      ? element("td", { class: "number" }, figure(value, columns[at].digits))
      : element("td", {}, value ?? ""),
  );
  return element("tr", onClick ? { class: "link", onclick: onClick } : {}, ...cells);
}
