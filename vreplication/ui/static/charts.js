// Draws the history of one workflow, as the sidecar keeps it, with uPlot; a table behind each chart for screen readers.
// What must stay true: an unknown figure, and a time without points, is a gap in the line, never 0; nothing is kept
// here but what the server has said.
"use strict";

(() => {
  const HEIGHT = 150;
  const LOOK = 5000;
  // Seconds between two points, as they are thinned: a wider distance is a gap.
  const STEPS = [5, 60, 600];
  // Seconds between two words on an axis of times.
  const ROUND = [5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800];
  const CHARTS = [
    { title: "Copied, applied", lines: [["rows_per_second", "copied", "rows/s"], ["applied_per_second", "applied", "changes/s"]] },
    { title: "Watermark lag, backlog", lines: [["lag_seconds", "lag", "s"], ["backlog", "backlog", "changes"]] },
    { title: "Chunks", lines: [["chunk_millis", "time", "ms"], ["chunk_rows", "size", "rows"]] },
  ];
  const FEED = [
    { title: "Sent, lag", lines: [["rows_per_second", "sent", "rows/s"], ["lag_seconds", "lag", "s"]] },
    { title: "Resolved watermark", lines: [["resolved_at", "resolved", "time"], ["at", "now", "time"]], time: true },
    { title: "Sent by partition", lines: [], isGrid: true },
  ];
  const isFeed = () => document.getElementById("past").dataset.kind === "changefeed";
  let url = null;
  let points = [];
  let last = null;
  let isWhole = false;
  let isUnderWay = false;
  let made = [];

  // -- what the server has

  async function load(more) {
    const span = `history=${isWhole ? "whole" : "hour"}`;
    const after = more && last !== null ? `&after=${last}` : "";
    const response = await fetch(`${document.body.dataset.root}${url}&${span}${after}`, { cache: "no-store" });
    if (!response.ok) throw new Error(response.status);
    const { history } = await response.json();
    const fresh = history.points.map((row) => Object.fromEntries(history.columns.map((name, n) => [name, row[n]])));
    // The newest one is written again while its five seconds last.
    const known = after ? points.filter((p) => !fresh.length || p.at < fresh[0].at) : [];
    points = [...known, ...fresh];
    if (!isWhole && points.length) points = points.filter((p) => p.at > points[points.length - 1].at - 3600);
    if (history.last !== null) last = history.last - 1;
  }

  function empty() {
    const { ended } = document.getElementById("past").dataset;
    return ended ? "There is no history of it." : "There is no history yet: it begins with the copy.";
  }

  async function update(more) {
    if (isUnderWay) return;
    isUnderWay = true;
    const place = held();
    place.setAttribute("aria-busy", "true");
    try {
      await load(more);
      note(points.length ? "" : empty());
    } catch {
      note("The history cannot be read now.");
    }
    isUnderWay = false;
    place.removeAttribute("aria-busy");
    show();
  }

  // -- the place

  function element(name, attributes = {}, text = "") {
    const found = document.createElement(name);
    for (const [k, v] of Object.entries(attributes)) found.setAttribute(k, v);
    if (text) found.textContent = text;
    return found;
  }

  function held() {
    const place = document.getElementById("charts");
    if (place.firstChild) return place;
    const head = element("div", { class: "wide" });
    const spans = element("div", { class: "chips", role: "group", "aria-label": "Time shown" });
    for (const [word, whole] of [["Last hour", false], ["Whole run", true]]) {
      const button = element("button", { type: "button", class: "chip", "aria-pressed": String(whole === isWhole) }, word);
      button.addEventListener("click", () => choose(whole));
      spans.append(button);
    }
    const words = isFeed() ? "Shaded: it waited, or was paused." : "Shaded: held back. Vertical line: the cut-over was tried.";
    const key = element("span", { class: "quiet" }, words);
    head.append(spans, key, element("span", { id: "charts-note", class: "quiet", "aria-live": "polite" }, "Loading the history…"));
    place.append(head);
    made = (isFeed() ? FEED : CHARTS).map((chart) => figure(chart));
    place.append(...made.map((m) => m.figure));
    new ResizeObserver(() => made.forEach(fit)).observe(place);
    return place;
  }

  function note(text) {
    document.getElementById("charts-note").textContent = text;
  }

  function choose(whole) {
    isWhole = whole;
    document.querySelectorAll("#charts .chip").forEach((b, n) => b.setAttribute("aria-pressed", String(Boolean(n) === whole)));
    note("Loading the history…");
    update(false);
  }

  function figure(chart) {
    const found = { chart, figure: element("figure", { class: "card" }), caption: element("figcaption"), plot: null };
    const kind = chart.isGrid ? { class: "grid" } : { role: "img", "aria-label": `${chart.title}, not drawn yet` };
    found.canvas = element("div", kind);
    if (chart.isGrid) Object.assign(found, { parts: [] }).figure.classList.add("wide-card");
    found.table = element("table", { class: "data" });
    const details = element("details");
    const scroll = element("div", { class: "scroll", tabindex: "0" });
    scroll.append(found.table);
    details.append(element("summary", {}, `${chart.title} as a table`), scroll);
    details.addEventListener("toggle", () => details.open && tabulate(found));
    found.details = details;
    found.figure.append(found.caption, found.canvas, details);
    return found;
  }

  // -- drawing

  const probe = element("i", { hidden: "" });
  function color(name) {
    probe.style.color = `var(--${name})`;
    if (!probe.isConnected) document.body.append(probe);
    return getComputedStyle(probe).color;
  }

  const known = (value) => value !== null && value !== undefined;
  const figures = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
  const said = (value, unit) => (unit === "time" ? (known(value) ? when(value) : "not known") : counted(value, unit));
  const counted = (value, unit) => (known(value) ? `${value < 10 ? figures.format(value) : figures.format(Math.round(value))} ${unit}` : "not known");
  const time = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const minute = new Intl.DateTimeFormat(undefined, time);
  const clock = new Intl.DateTimeFormat(undefined, { second: "2-digit", ...time });
  const dated = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", ...time });
  const when = (at) => (span() > 43200 ? dated : clock).format(new Date(at * 1000));
  const span = () => (points.length ? points[points.length - 1].at - points[0].at : 0);

  // Points with an empty one wherever nothing was written for a while.
  function spaced() {
    const found = [];
    for (const point of points) {
      const before = found[found.length - 1];
      if (before && point.at - before.at > 3 * STEPS.find((step, n) => n === 2 || before.at % STEPS[n + 1] || point.at - before.at <= 3 * step))
        found.push({ at: before.at + 1 });
      found.push(point);
    }
    return found;
  }

  function columns(chart, seen) {
    return [seen.map((p) => p.at), ...chart.lines.map(([name]) => seen.map((p) => (known(p[name]) ? p[name] : null)))];
  }

  // Where the time axis has a word: uPlot's own steps go from one minute to five, and a run of four has none of these.
  const PARTS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

  function moments(u, n, from, to) {
    const most = Math.max(2, Math.floor(u.bbox.width / devicePixelRatio / 90));
    const zone = new Date(from * 1000).getTimezoneOffset() * 60;
    const count = (step) => Math.floor((to - zone) / step) - Math.ceil((from - zone) / step) + 1;
    const days = Math.ceil((to - from) / 86400 / most) * 86400;
    const step = PARTS.find((each) => count(each) <= most) || days;
    const first = Math.ceil((from - zone) / step) * step + zone;
    const found = Array.from({ length: Math.max(0, count(step)) }, (_, k) => first + k * step);
    return found.length ? found : [from];
  }

  function named(u, splits) {
    const isFine = splits.length > 1 && splits[1] - splits[0] < 60;
    const format = span() > 43200 ? dated : isFine ? clock : minute;
    return splits.map((at) => format.format(new Date(at * 1000)));
  }

  function options(found) {
    const width = Math.max(found.canvas.clientWidth, 120);
    const upTo = (u, low, high) => [0, high > 0 ? high * 1.1 : 1];
    const axis = (more) => ({ stroke: () => color("quiet"), font: "11px system-ui", ticks: { show: false }, ...more });
    const isTime = found.chart.time;
    const lines = found.chart.lines.map((_, n) => ({
      scale: `y${isTime ? 0 : n}`,
      stroke: () => color(n ? "second" : "moving"),
      width: 1.6,
      dash: n ? [5, 3] : [],
      spanGaps: false,
      points: { show: (u, s, from, to) => to - from < 1, size: 4 },
    }));
    const grid = { stroke: () => color("line"), width: 1 };
    const shown = (v) => (isTime ? minute.format(new Date(v * 1000)) : short.format(v));
    const values = (u, splits) => splits.map((v) => (known(v) ? shown(v) : ""));
    const y0 = isTime ? { range: (u, low, high) => [low, Math.max(high, low + 60)] } : { range: upTo };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { sync: { key: "vreplication" }, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true, range: (u, from, to) => [from, Math.max(to, from + 60)] }, y0, y1: { range: upTo } },
      series: [{}, ...lines],
      axes: [
        axis({ grid: { show: false }, size: 22, space: 90, splits: moments, values: named }),
        axis({ scale: "y0", grid, size: isTime ? 66 : 44, values, space: 36, ...(isTime ? { incrs: ROUND } : {}) }),
        ...(isTime ? [] : [axis({ scale: "y1", side: 1, grid: { show: false }, size: 44, values, space: 36 })]),
      ],
      hooks: {
        drawClear: [(u) => shade(u)],
        draw: [(u) => mark(u)],
        setCursor: [(u) => describe(found, u.cursor.idx)],
      },
    };
  }

  function shade(u) {
    u.ctx.save();
    u.ctx.fillStyle = color("held-back");
    points.forEach((p, n) => {
      if (!p.throttled || !n) return;
      const left = u.valToPos(Math.max(points[n - 1].at, p.at - 600), "x", true);
      u.ctx.fillRect(left, u.bbox.top, Math.max(u.valToPos(p.at, "x", true) - left, 2), u.bbox.height);
    });
    u.ctx.restore();
  }

  function mark(u) {
    u.ctx.save();
    u.ctx.fillStyle = color("failed");
    points.forEach((p, n) => {
      if (n && p.cutover_attempts > points[n - 1].cutover_attempts)
        u.ctx.fillRect(u.valToPos(p.at, "x", true) - 1, u.bbox.top, 2, u.bbox.height);
    });
    u.ctx.restore();
  }

  // -- a small chart for each partition, all of one scale

  const rate = (point, n) => (point.rates && n < point.rates.length ? point.rates[n] : null);
  const count = () => Math.max(0, ...points.map((p) => (p.rates ? p.rates.length : 0)));

  function showGrid(found) {
    const needed = count();
    while (found.parts.length > needed) found.parts.pop().place.remove();
    while (found.parts.length < needed) found.parts.push(part(found));
    found.most = Math.max(1, ...points.flatMap((p) => p.rates || []));
    found.parts.forEach((made, n) => {
      const data = [found.seen.map((p) => p.at), found.seen.map((p) => rate(p, n))];
      if (made.plot) made.plot.setData(data);
      else made.plot = new uPlot(small(found, made), data, made.canvas);
    });
    describeGrid(found, null);
  }

  function part(found) {
    const place = element("div", { class: "part" });
    const made = { place, words: element("p"), canvas: element("div", { role: "img", "aria-label": "not drawn yet" }), plot: null };
    place.append(made.words, made.canvas);
    found.canvas.append(place);
    return made;
  }

  function small(found, made) {
    const line = { scale: "y", stroke: () => color("moving"), fill: () => color("moving-back"), width: 1.2, spanGaps: false, points: { show: false } };
    return {
      width: Math.max(made.canvas.clientWidth, 80),
      height: 44,
      padding: [2, 0, 2, 0],
      legend: { show: false },
      cursor: { sync: { key: "vreplication" }, drag: { x: false, y: false }, points: { size: 5 } },
      scales: { x: { time: true, range: (u, from, to) => [from, Math.max(to, from + 60)] }, y: { range: () => [0, found.most * 1.05] } },
      series: [{}, line],
      axes: [{ show: false }, { show: false }],
      hooks: { drawClear: [(u) => shade(u)], setCursor: [(u) => describeGrid(found, u.cursor.idx)] },
    };
  }

  function describeGrid(found, index) {
    const point = (known(index) && found.seen[index]) || points[points.length - 1];
    const time = known(index) ? when(point.at) : "now";
    const scale = element("span", { class: "quiet" }, `${time}; each chart from 0 to ${counted(found.most, "rows/s")}`);
    found.caption.replaceChildren(element("strong", {}, found.chart.title), scale);
    found.parts.forEach((made, n) => {
      const value = rate(point, n);
      const words = known(value) ? counted(value, "rows/s") : "not in use";
      made.words.replaceChildren(element("strong", {}, String(n)), ` ${words}`);
      made.canvas.setAttribute("aria-label", `Partition ${n}, ${when(points[0].at)} to ${when(points[points.length - 1].at)}: ${time} ${words}`);
    });
  }

  function fitGrid(found) {
    for (const { plot, canvas } of found.parts) if (plot && canvas.clientWidth) plot.setSize({ width: canvas.clientWidth, height: 44 });
  }

  function fit(found) {
    if (found.parts) return fitGrid(found);
    if (found.plot && found.canvas.clientWidth) found.plot.setSize({ width: found.canvas.clientWidth, height: HEIGHT });
  }

  function show() {
    const place = held();
    made.forEach((found) => (found.figure.hidden = !points.length));
    if (!points.length) return;
    const seen = spaced();
    for (const found of made) {
      if (found.parts) {
        found.seen = seen;
        found.figure.hidden = !count();
        showGrid(found);
        if (found.details.open) tabulate(found);
        continue;
      }
      const data = columns(found.chart, seen);
      if (found.plot) found.plot.setData(data);
      else found.plot = new uPlot(options(found), data, found.canvas);
      found.seen = seen;
      describe(found, found.plot.cursor.idx);
      if (found.details.open) tabulate(found);
    }
    place.hidden = false;
  }

  // The figures under the pointer, else the last ones, in words beside the colors.
  function describe(found, index) {
    const point = (known(index) && found.seen && found.seen[index]) || points[points.length - 1];
    const words = found.chart.lines.map(([name, word, unit]) => `${word} ${said(point[name], unit)}`);
    const parts = words.map((text, n) => element("span", { class: n ? "key second" : "key" }, text));
    const time = element("span", { class: "quiet" }, known(index) ? when(point.at) : "");
    const held = point.throttled ? [element("span", { class: "note" }, `held back: ${point.throttled}`)] : [];
    found.caption.replaceChildren(element("strong", {}, found.chart.title), ...parts, ...held, time);
    found.canvas.setAttribute("aria-label", `${found.chart.title}, ${when(points[0].at)} to ${when(points[points.length - 1].at)}: now ${words.join(", ")}`);
  }

  function tabulate(found) {
    const rows = document.createDocumentFragment();
    const step = Math.max(1, Math.floor(points.length / 60));
    for (const p of points.filter((_, n) => (points.length - 1 - n) % step === 0).reverse()) {
      const row = element("tr");
      const shown = found.parts ? found.parts.map((_, n) => said(rate(p, n), "rows/s")) : found.chart.lines.map(([name, , unit]) => said(p[name], unit));
      const cells = [when(p.at), ...shown, p.throttled || "no", ...(isFeed() ? [] : [p.cutover_attempts])];
      for (const text of cells) row.append(element("td", {}, String(text)));
      rows.append(row);
    }
    const head = element("tr");
    const names = found.parts ? found.parts.map((_, n) => `Partition ${n}`) : found.chart.lines.map(([, w]) => w);
    for (const word of ["Time", ...names, "Held back", ...(isFeed() ? [] : ["Cut-overs tried"])]) head.append(element("th", { scope: "col" }, word));
    const top = element("thead");
    const body = element("tbody");
    top.append(head);
    body.append(rows);
    found.table.replaceChildren(element("caption", { class: "unseen" }, found.chart.title), top, body);
  }

  // -- looking again

  let looked = 0;

  function look() {
    const source = document.getElementById("past");
    if (!source) return;
    const isNew = url !== source.dataset.url;
    url = source.dataset.url;
    if (!isNew && (source.dataset.ended || Date.now() - looked < LOOK)) return;
    looked = Date.now();
    update(!isNew);
  }

  const redraw = () => made.forEach((m) => (m.parts || [m]).forEach(({ plot }) => plot && plot.redraw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.vreplicationCharts = { look, redraw };
})();
