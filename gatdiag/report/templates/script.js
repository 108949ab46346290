"use strict";
(() => {
  for (const code of navigator.clipboard ? document.querySelectorAll("pre") : []) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent.trimEnd());
      button.textContent = "Copied";
    });
    code.before(button);
  }

  const hint = () => {
    for (const line of document.querySelectorAll(".hint")) {
      const frame = line.nextElementSibling;
      line.hidden = frame.scrollWidth <= frame.clientWidth;
    }
  };
  hint();
  addEventListener("resize", hint);

  const words = new Intl.Collator(undefined, { numeric: true });
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const missing = (value) => value === "" || Number.isNaN(value);
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a < b ? -1 : a > b ? 1 : 0;
    return words.compare(a, b);
  };
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const ascending = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row, column), row]);
        rows.sort(([a], [b]) => {
          if (missing(a) || missing(b)) return missing(a) - missing(b);
          return ascending ? compare(a, b) : compare(b, a);
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }
})();
