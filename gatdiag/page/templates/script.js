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
  // Numbers as in the figures and in the text.
  const raised = (power) => String(power).replace(/[-\d]/g, (one) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(one)]);
  const parts = (value, digits) => value.toExponential(digits).replace("-", (sign, at) => (at ? sign : "−")).split("e");
  const number = (value) => {
    const size = Math.abs(value);
    if (value && (size < 1e-3 || size >= 1e5)) {
      const [mantissa, exponent] = parts(value, 2);
      return `${mantissa.replace(/\.?0+$/, "")}\u00a0×\u00a010${raised(Number(exponent))}`;
    }
    const text = size < 1000 ? String(Number(value.toPrecision(3))) : Math.round(value).toLocaleString("en");
    return text.replace("-", "−");
  };
  const power = (value) => {
    const [mantissa, exponent] = parts(value, 0);
    return `${mantissa === "1" ? "" : `${mantissa}×`}10${raised(Number(exponent))}`;
  };
  const NO_NUMBERS = {
    n: { kind: "broken", words: "NaN" }, p: { kind: "broken", words: "∞" }, m: { kind: "broken", words: "−∞" },
    o: { kind: "o", words: "output is zero" }, g: { kind: "g", words: "gradient is zero" },
  };
  const inWords = (value) => (value === null ? "not measured" : NO_NUMBERS[value]?.words ?? number(value));
  const MARKS = {
    broken: { sign: "✕", color: "#d81b60", isTop: true, words: "NaN or infinite" },
    zero: { sign: "▾", words: "exactly 0" }, below: { sign: "▿", words: "below 0" },
    o: { sign: "◆", words: "output is zero" }, g: { sign: "■", words: "gradient is zero" },
  };
  const STEPS = Array.from({ length: 30 }, (_, one) => [1, 2, 5][one % 3] * 10 ** Math.floor(one / 3));
  const options = (select, names) => select.replaceChildren(...names.map((name, place) => new Option(name, place)));
  const chart = (fold) => {
    const quantities = JSON.parse(fold.dataset.chart);
    const controls = fold.appendChild(document.createElement("p"));
    const quantity = control("select", "Quantity", controls);
    const layer = control("select", "Layer", controls);
    const log = control("input", "Logarithmic", controls);
    const told = fold.appendChild(document.createElement("output"));
    const place = fold.appendChild(document.createElement("div"));
    const key = fold.appendChild(document.createElement("p"));
    log.type = "checkbox";
    options(quantity, quantities.map((one) => one.label));
    let plot, current;
    const draw = () => {
      plot?.destroy();
      const ink = getComputedStyle(document.body).color;
      const { layers, colors, steps, values, healthy, of } = current;
      const isLog = log.checked;
      const isShown = (one) => Number(layer.value) < 1 || Number(layer.value) - 1 === one;
      // A gap in a line is NaN, infinite, or on a logarithmic axis not positive; what was not measured leaves none.
      const height = (value) => (value === null ? undefined : typeof value === "string" || (isLog && value <= 0) ? null : value);
      const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 } };
      const range = (u, low, high) => {
        const known = (one) => one != null && (!isLog || one > 0);
        const ends = [low, high, healthy[0], healthy[1] ?? healthy[0]].filter(known);
        const [from, to] = [Math.min(...ends), Math.max(...ends)];
        if (isLog) return [from / 1.5, to * 1.5];
        const room = 0.05 * (to - from) || 0.05 * Math.abs(to) || 1;
        return [from - room, to + room];
      };
      const decades = (u, _, low, high) => {
        const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
        const every = Math.max(Math.ceil((last - first + 1) / 7), 1);
        const found = [];
        for (let power = Math.ceil(first / every) * every; power <= last; power += every) found.push(Number(`1e${power}`));
        if (last - first > 1) return found;
        for (let power = first - 1; power <= last; power += 1) for (const one of [2, 5]) found.push(Number(`${one}e${power}`));
        return found.filter((one) => low <= one && one <= high).sort((one, other) => one - other);
      };
      const size = (_, labels) => 24 + 7 * Math.max(3, ...(labels ?? []).map((one) => one.length));
      const seen = new Set();
      const band = (u) => {
        const box = u.bbox;
        const [top, bottom] = [healthy[1] ?? u.scales.y.max, isLog && healthy[0] <= 0 ? u.scales.y.min : healthy[0]].map((one) => u.valToPos(one, "y", true));
        const [from, to] = [Math.max(top, box.top), Math.min(bottom, box.top + box.height)];
        u.ctx.fillStyle = "#009e7333";
        u.ctx.fillRect(box.left, from, box.width, Math.max(to - from, 0));
        seen.clear();
        if (to - from >= 2) seen.add("band");
      };
      // What has no place on the axis is marked at its edge, as in the figures.
      const mark = (u) => {
        const marked = new Set();
        values.forEach((row, one) => isShown(one) && row.forEach((value, at) => {
          const kind = value === null ? null : NO_NUMBERS[value]?.kind ?? (isLog && value <= 0 ? (value < 0 ? "below" : "zero") : null);
          if (!kind || steps[at] < u.scales.x.min || steps[at] > u.scales.x.max) return;
          seen.add(kind);
          if (marked.has(`${kind} ${at}`)) return;
          marked.add(`${kind} ${at}`);
          const { sign, color, isTop } = MARKS[kind];
          u.ctx.font = `${11 * devicePixelRatio}px sans-serif`;
          u.ctx.fillStyle = color ?? ink;
          u.ctx.textAlign = "center";
          u.ctx.textBaseline = "middle";
          u.ctx.fillText(sign, u.valToPos(steps[at], "x", true), isTop ? u.bbox.top + 7 * devicePixelRatio : u.bbox.top + u.bbox.height - 7 * devicePixelRatio);
        }));
        explain();
      };
      const explain = () => {
        const words = [];
        const usual = healthy[1] === null ? `${number(healthy[0])} and more` : `${number(healthy[0])} to ${number(healthy[1])}`;
        words.push(seen.has("band") ? `Green: ${usual}, as in healthy trainings.` : `Healthy trainings: ${usual}, too narrow to be seen on this scale.`);
        if (layers.length > 1) words.push("From blue, the first layer, to gold, the last.");
        for (const [kind, { sign, words: what }] of Object.entries(MARKS)) if (seen.has(kind)) words.push(`${sign} ${what}.`);
        const drawn = [layers.length, steps.length];
        ["layers", "steps"].forEach((what, one) => { if (drawn[one] < of[one]) words.push(`${drawn[one]} of ${of[one].toLocaleString("en")} ${what} are drawn.`); });
        key.textContent = words.join(" ");
      };
      let nearest = Number(layer.value) || null;
      const tell = (u, series) => {
        nearest = series ?? nearest;
        const at = u.cursor.idx;
        if (!nearest || at == null) return;
        told.textContent = `${layers[nearest - 1]}, step ${steps[at].toLocaleString("en")}: ${inWords(values[nearest - 1][at])}`;
      };
      const alone = (u, one) => {
        const data = u.data[one];
        const has = (at) => data[at] != null;
        return steps.map((_, at) => at).filter((at) => has(at) && !has(at - 1) && !has(at + 1));
      };
      plot = new uPlot({
        width: fold.clientWidth, height: 320, legend: { show: false }, focus: { alpha: 0.15 },
        cursor: { focus: { prox: 1e6 }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range } },
        axes: [
          { ...axis, label: "step", incrs: STEPS, values: (_, found) => found.map((one) => one.toLocaleString("en")) },
          { ...axis, size, values: (_, found) => found.map(isLog ? power : number), ...(isLog && { splits: decades, filter: (_, found) => found }) },
        ],
        series: [{}, ...layers.map((name, one) => ({
          label: name, show: isShown(one), width: 1.5, stroke: colors[one], points: { show: true, size: 6, filter: alone },
        }))],
        hooks: { drawClear: [band], draw: [mark], setSeries: [tell], setCursor: [(u) => tell(u)] },
      }, [steps, ...values.map((row) => row.map(height))], place);
    };
    const choose = () => {
      const kept = current?.layers[layer.value - 1];
      current = quantities[quantity.value];
      options(layer, ["all", ...current.layers]);
      layer.value = String(current.layers.indexOf(kept) + 1);
      log.checked = current.log;
      told.textContent = "";
      draw();
    };
    quantity.addEventListener("change", choose);
    for (const one of [layer, log]) one.addEventListener("change", draw);
    choose();
    addEventListener("resize", () => fold.open && plot.setSize({ width: fold.clientWidth, height: 320 }));
    return (name) => {
      if (!current.layers.includes(name)) {
        quantity.value = String(quantities.findIndex((one) => one.layers.includes(name)));
        choose();
      }
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

  // A heat map is an image: the cell under the pointer is named.
  for (const frame of document.querySelectorAll("[data-cells]")) {
    const [image, narrow] = ["img", "source"].map((kind) => frame.querySelector(kind));
    const told = document.createElement("output");
    const rest = "Point at a cell to read its layer, step and value.";
    let read;
    const cell = (event) => {
      read ??= JSON.parse(frame.dataset.cells);
      const box = image.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      const places = read.places[narrow && matchMedia(narrow.media).matches ? 1 : 0];
      const one = places.findIndex(([left, top, right, bottom]) => left <= x && x < right && top <= y && y < bottom);
      if (one < 0) return rest;
      const [left, top, right, bottom, low, high] = places[one];
      const { steps, lasts, end, some, values } = read.maps[one];
      const layers = read.layers[read.maps[one].layers];
      const step = low + ((x - left) / (right - left)) * (high - low) + 0.5;
      const at = step < end ? steps.findLastIndex((first) => first <= step) : -1;
      if (at < 0) return rest;
      const layer = Math.floor(((y - top) / (bottom - top)) * layers.length);
      const [first, last] = [steps[at], lasts?.[at] ?? steps[at]].map((number) => number.toLocaleString("en"));
      return `${layers[layer]}, ${some ? "near " : ""}${first === last ? "step" : "steps"} ${first}${first === last ? "" : ` to ${last}`}: ${inWords(values[layer][at])}`;
    };
    told.textContent = rest;
    frame.append(told);
    for (const kind of ["pointermove", "pointerdown"]) image.addEventListener(kind, (event) => { told.textContent = cell(event); });
  }

  // The layers of a strip, by keyboard: one stop of the tab key, arrows within, Enter as a click. What has the focus is named.
  for (const strip of document.querySelectorAll(".strip")) {
    const cells = [...strip.querySelectorAll(".cell")];
    const named = document.createElement("output");
    strip.after(named);
    strip.setAttribute("role", "toolbar");
    const stop = (at) => cells.forEach((cell, place) => { cell.tabIndex = place === at ? 0 : -1; });
    cells.forEach((cell, place) => {
      cell.setAttribute("role", "button");
      cell.setAttribute("aria-label", cell.title);
      for (const event of ["focus", "mouseenter"]) cell.addEventListener(event, () => { named.textContent = cell.title; });
      cell.addEventListener("focus", () => stop(place));
    });
    stop(0);
    strip.addEventListener("keydown", (event) => {
      const at = cells.indexOf(event.target);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: cells.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") event.target.click();
      else if (cells[to]) cells[to].focus();
      else return;
      event.preventDefault();
    });
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
  const PLAIN = { "−": "-", "∞": "Infinity", "\u00a0×\u00a010": "e", ",": "" };
  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    if (!cell.matches("td:not(.t)")) return text;
    const plain = text.replace(/[−∞,]|\u00a0×\u00a010/g, (found) => PLAIN[found]);
    return Number(plain.replace(/[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]/g, (one) => "-0123456789"["⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(one)]));
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
