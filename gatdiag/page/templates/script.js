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

  // Every layer over the steps: the nearest curve is named, one layer can be seen alone.
  const control = (kind, label, parent) => {
    const made = document.createElement(kind);
    const around = document.createElement("label");
    around.append(`${label} `, made);
    parent.append(around, " ");
    return made;
  };
  const options = (select, names) => select.replaceChildren(...names.map((name, place) => new Option(name, place)));
  const chart = (fold) => {
    const quantities = JSON.parse(fold.dataset.chart);
    const controls = fold.appendChild(document.createElement("p"));
    const quantity = control("select", "Quantity", controls);
    const layer = control("select", "Layer", controls);
    const log = control("input", "Logarithmic", controls);
    const told = fold.appendChild(document.createElement("output"));
    const place = fold.appendChild(document.createElement("div"));
    log.type = "checkbox";
    options(quantity, quantities.map((one) => one.label));
    let plot, current;
    const draw = () => {
      plot?.destroy();
      const ink = getComputedStyle(document.body).color;
      const { layers, steps, values, healthy } = current;
      const shown = layers.map((_, one) => Number(layer.value) < 1 || Number(layer.value) - 1 === one);
      const positive = (value) => (log.checked && value <= 0 ? null : value);
      const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 } };
      const ticks = (_, found) => found.map((one) => (one === null ? "" : String(Number(one.toPrecision(3)))));
      const band = (u) => {
        const floor = u.scales.y.min;
        const [top, bottom] = [healthy[1] ?? u.scales.y.max, Math.max(healthy[0], floor)].map((one) => u.valToPos(one, "y", true));
        const box = u.bbox;
        const [from, to] = [Math.max(top, box.top), Math.min(bottom, box.top + box.height)];
        u.ctx.fillStyle = "#4f9d7433";
        u.ctx.fillRect(box.left, from, box.width, Math.max(to - from, 0));
      };
      let nearest = Number(layer.value) || null;
      const tell = (u, series) => {
        nearest = series ?? nearest;
        const at = u.cursor.idx;
        if (!nearest || at == null) return;
        const value = values[nearest - 1][at] ?? "not measured";
        told.textContent = `${layers[nearest - 1]}, step ${steps[at].toLocaleString("en")}: ${value}`;
      };
      plot = new uPlot({
        width: fold.clientWidth, height: 320, legend: { show: false }, focus: { alpha: 0.15 },
        cursor: { focus: { prox: 1e6 }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: log.checked ? 3 : 1 } },
        axes: [{ ...axis, label: "step" }, { ...axis, size: 80, values: ticks }],
        series: [{}, ...layers.map((name, one) => ({
          label: name, show: shown[one], width: 1.5, spanGaps: true, points: { show: steps.length < 3, size: 6 },
          stroke: `hsl(${265 - 215 * one / Math.max(layers.length - 1, 1)} 75% 50%)`,
        }))],
        hooks: { drawClear: [band], setSeries: [tell], setCursor: [(u) => tell(u)] },
      }, [steps, ...values.map((row) => row.map(positive))], place);
    };
    const choose = () => {
      current = quantities[quantity.value];
      options(layer, ["all", ...current.layers]);
      log.checked = current.log;
      const [low, high] = current.healthy;
      told.textContent = `Green: ${high === null ? `${low} and more` : `${low} to ${high}`}, as in healthy trainings. From violet, the first layer, to yellow, the last.`;
      draw();
    };
    quantity.addEventListener("change", choose);
    for (const one of [layer, log]) one.addEventListener("change", draw);
    choose();
    addEventListener("resize", () => fold.open && plot.setSize({ width: fold.clientWidth, height: 320 }));
    return (name) => {
      layer.value = String(current.layers.indexOf(name) + 1);
      draw();
    };
  };
  for (const fold of document.querySelectorAll("details[data-chart]")) {
    let only;
    fold.hidden = false;
    fold.addEventListener("toggle", () => { if (fold.open) only ??= chart(fold); });
    for (const cell of fold.closest("section").querySelectorAll(".strip .cell")) {
      cell.addEventListener("click", () => {
        fold.open = true;
        only ??= chart(fold);
        only(cell.dataset.layer);
        fold.scrollIntoView({ block: "nearest" });
      });
    }
  }

  // What a link leads to is unfolded.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let fold = target; fold; fold = fold.parentElement) if (fold.localName === "details") fold.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(unfold));
  if (location.hash) unfold();

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
