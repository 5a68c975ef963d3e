// Draws what the page has seen of one workflow over time, as SVG, with a table behind it for screen readers.
// What must stay true: an unknown figure is a gap in the line, never 0; samples are the browser's own and begin when the
// page is opened.
"use strict";

(() => {
  const MOST = 3600;
  const HOUR = 3600e3;
  const WIDTH = 600;
  const HEIGHT = 96;
  const CHARTS = [
    { title: "Rows copied", lines: [["rows_per_second", "copied", " rows/s"]] },
    { title: "Changes applied", lines: [["applied_per_second", "applied", " changes/s"]] },
    { title: "Watermark lag", lines: [["lag_seconds", "lag", " s"]] },
    { title: "Backlog", lines: [["backlog", "backlog", " changes"]] },
    { title: "Time of a chunk", lines: [["chunk_millis", "time", " ms"]] },
    { title: "Size of a chunk", lines: [["chunk_rows", "size", " rows"]] },
  ];
  let key = null;
  let samples = [];
  let isWhole = false;

  function load(workflow) {
    key = `vreplication:${workflow}`;
    try {
      samples = JSON.parse(sessionStorage.getItem(key)) || [];
    } catch {
      samples = [];
    }
  }

  function keep(sample) {
    samples.push({ ...sample, at: Date.now() });
    // Older ones are thinned out, so that a long run still fits.
    if (samples.length > MOST) samples = samples.filter((s, n) => n > MOST / 2 || n % 2 === 0);
    try {
      sessionStorage.setItem(key, JSON.stringify(samples));
    } catch {
      // A full or forbidden store: this view keeps what it has in memory.
    }
  }

  function make(name, attributes = {}, text = "") {
    const isShape = ["svg", "path", "rect", "line"].includes(name);
    const made = isShape ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [k, v] of Object.entries(attributes)) made.setAttribute(k, v);
    if (text) made.textContent = text;
    return made;
  }

  const number = (value, unit) =>
    value === null || value === undefined
      ? "not known"
      : value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 1 : 0 }) + unit;

  function path(seen, name, x, y) {
    let isDown = false;
    const steps = [];
    for (const s of seen) {
      if (s[name] === null || s[name] === undefined) isDown = false;
      else {
        steps.push(`${isDown ? "L" : "M"}${x(s.at).toFixed(1)} ${y(s[name]).toFixed(1)}`);
        isDown = true;
      }
    }
    // A lone point would not be seen.
    return steps.length === 1 ? `${steps[0]}h2` : steps.join("");
  }

  function draw(chart, seen) {
    const values = seen.flatMap((s) => chart.lines.map(([name]) => s[name])).filter((v) => v !== null && v !== undefined);
    const top = Math.max(...values, 0) * 1.1 || 1;
    const from = seen[0].at;
    const span = Math.max(seen[seen.length - 1].at - from, 1000);
    const x = (at) => ((at - from) / span) * WIDTH;
    const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 6);
    const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    svg.setAttribute("aria-label", `${chart.title}: ${chart.lines.map((l) => latest(seen, l)).join(", ")}`);
    shades(svg, seen, x);
    for (const part of [0.5, 1]) {
      svg.append(make("line", { class: "grid", x1: 0, x2: WIDTH, y1: y((top / 1.1) * part), y2: y((top / 1.1) * part) }));
    }
    marks(svg, seen, x);
    chart.lines.forEach(([name], n) => svg.append(make("path", { class: n ? "line second" : "line", d: path(seen, name, x, y) })));
    return { svg, top: values.length ? number(top / 1.1, chart.lines[0][2]) : "" };
  }

  // The last figure, or why there is none.
  function latest(seen, [name, word, unit]) {
    const last = seen[seen.length - 1];
    const isKnown = last[name] !== null && last[name] !== undefined;
    return isKnown ? `${word} ${number(last[name], unit)}` : `${word}: ${(last.why && last.why[name]) || "not known"}`;
  }

  function shades(svg, seen, x) {
    for (let n = 1; n < seen.length; n++) {
      if (!seen[n].throttled) continue;
      const left = x(seen[n - 1].at);
      svg.append(make("rect", { class: "shade", x: left, y: 0, width: x(seen[n].at) - left, height: HEIGHT }));
    }
  }

  function marks(svg, seen, x) {
    for (let n = 1; n < seen.length; n++) {
      if (!(seen[n].cutover_attempts > seen[n - 1].cutover_attempts)) continue;
      svg.append(make("line", { class: "mark", x1: x(seen[n].at), x2: x(seen[n].at), y1: 0, y2: HEIGHT }));
    }
  }

  const clock = (at) => new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

  function figure(chart, seen) {
    const made = make("figure", { class: "card" });
    const caption = make("figcaption");
    caption.append(make("strong", {}, chart.title));
    chart.lines.forEach((l, n) => caption.append(make("span", { class: n ? "key second" : "key" }, latest(seen, l))));
    const { svg, top } = draw(chart, seen);
    const axis = make("div", { class: "axis", "aria-hidden": "true" });
    axis.append(make("span", {}, clock(seen[0].at)), make("span", {}, top ? `top ${top}` : ""));
    axis.append(make("span", {}, clock(seen[seen.length - 1].at)));
    made.append(caption, svg, axis);
    return made;
  }

  function table(seen) {
    const columns = CHARTS.flatMap((c) => c.lines);
    const made = make("table", { class: "data" });
    const head = made.createTHead().insertRow();
    for (const word of ["Time", ...columns.map(([, w, unit]) => `${w} (${unit.trim()})`), "held back"])
      head.append(make("th", { scope: "col" }, word));
    const body = made.createTBody();
    const step = Math.max(1, Math.floor(seen.length / 30));
    for (const s of seen.filter((_, n) => (seen.length - 1 - n) % step === 0).reverse()) {
      const row = body.insertRow();
      row.insertCell().textContent = clock(s.at);
      for (const [name] of columns) row.insertCell().textContent = number(s[name], "");
      row.insertCell().textContent = s.throttled ? "yes" : "no";
    }
    return made;
  }

  // "said 14:31 ten minutes ago": how the promise has moved.
  function moved() {
    const place = document.getElementById("eta-moved");
    if (!place) return;
    const now = samples[samples.length - 1];
    const past = samples.filter((s) => s.eta && s.at > now.at - 600e3).map((s) => Date.parse(s.eta));
    const brief = (at) => new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
    const low = brief(Math.min(...past));
    const high = brief(Math.max(...past));
    place.textContent = now.eta && past.length > 4 && low !== high ? `It said between ${low} and ${high} in the last 10 minutes.` : "";
  }

  function held() {
    const place = document.getElementById("charts");
    if (!place.firstChild) {
      const whole = make("button", { type: "button", "aria-pressed": "false" }, "Whole time");
      whole.addEventListener("click", () => {
        isWhole = !isWhole;
        whole.setAttribute("aria-pressed", String(isWhole));
        whole.textContent = isWhole ? "Last hour" : "Whole time";
        show();
      });
      const details = make("details", { class: "card" });
      details.append(make("summary", {}, "The figures as a table"), make("div", { class: "scroll", tabindex: "0" }));
      const foot = make("div", { class: "wide" });
      const note = make("p", { class: "quiet" }, "Since this page was opened. Shaded: held back. Red line: the cut-over was tried. ");
      note.append(whole);
      foot.append(note, details);
      place.append(...CHARTS.map(() => make("figure")), foot);
    }
    return place;
  }

  function show() {
    const last = samples[samples.length - 1].at;
    const seen = isWhole ? samples : samples.filter((s) => s.at > last - HOUR);
    const place = held();
    CHARTS.forEach((chart, n) => place.children[n].replaceWith(figure(chart, seen)));
    place.querySelector(".scroll").replaceChildren(table(seen));
    moved();
  }

  function look() {
    const source = document.getElementById("sample");
    if (!source) return;
    if (key !== `vreplication:${source.dataset.workflow}`) load(source.dataset.workflow);
    if (!source.dataset.ended) keep(JSON.parse(source.dataset.sample));
    document.getElementById("charts").hidden = !samples.length;
    if (samples.length) show();
  }

  window.vreplicationCharts = { look };
})();
